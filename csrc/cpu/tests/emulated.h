// AVX512-BF16 and AMX instructions in plain AVX-512, for testing on processors without them. Included before anything
// else
// (-include): what the intrinsics' names stand for afterwards is below.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace emulated {

inline float wide(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

inline __m256i narrow(__m512 values) {
  alignas(64) uint32_t words[16];
  alignas(32) uint16_t halves[16];
  _mm512_store_ps(words, values);
  for (int i = 0; i < 16; ++i) {
    const bool is_nan = (words[i] & 0x7fffffffu) > 0x7f800000u;
    halves[i] =
        static_cast<uint16_t>(is_nan ? (words[i] >> 16) | 0x40u : (words[i] + 0x7fffu + ((words[i] >> 16) & 1u)) >> 16);
  }
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(halves));
}

inline __m512 dot_pairs(__m512 sum, __m512i a, __m512i b) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const auto odd = [&](__m512i v) { return _mm512_castsi512_ps(_mm512_and_si512(v, upper)); };
  const auto even = [&](__m512i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); };
  return _mm512_fmadd_ps(even(a), even(b), _mm512_fmadd_ps(odd(a), odd(b), sum));
}

struct Tiles {
  uint8_t configured = 0;
  uint16_t row_bytes[8] = {};
  uint8_t rows[8] = {};
  uint8_t data[8][16][64] = {};
};

inline Tiles& tiles() {
  static thread_local Tiles tiles;
  return tiles;
}

inline void load_config(const void* memory) {
  const auto* bytes = static_cast<const uint8_t*>(memory);
  Tiles& t = tiles();
  t = Tiles{};
  t.configured = bytes[0];
  std::memcpy(t.row_bytes, bytes + 16, sizeof t.row_bytes);
  std::memcpy(t.rows, bytes + 48, sizeof t.rows);
}

inline void check(bool right) {
  if (!right) {
    __builtin_trap();
  }
}

inline void load(int tile, const void* base, int64_t stride) {
  Tiles& t = tiles();
  check(t.configured == 1);
  for (int row = 0; row < t.rows[tile]; ++row) {
    std::memcpy(t.data[tile][row], static_cast<const char*>(base) + row * stride, t.row_bytes[tile]);
  }
}

inline void store(int tile, void* base, int64_t stride) {
  Tiles& t = tiles();
  check(t.configured == 1);
  for (int row = 0; row < t.rows[tile]; ++row) {
    std::memcpy(static_cast<char*>(base) + row * stride, t.data[tile][row], t.row_bytes[tile]);
  }
}

inline void dot_tiles(int c, int a, int b) {
  Tiles& t = tiles();
  check(t.configured == 1 && t.rows[a] == t.rows[c] && t.row_bytes[b] == t.row_bytes[c]);
  check(t.row_bytes[a] == 4 * t.rows[b]);
  for (int m = 0; m < t.rows[c]; ++m) {
    __m512 sum = _mm512_loadu_ps(t.data[c][m]);
    for (int k = 0; k < t.row_bytes[a] / 4; ++k) {
      uint32_t pair;
      std::memcpy(&pair, t.data[a][m] + 4 * k, sizeof pair);
      sum = dot_pairs(sum, _mm512_loadu_si512(t.data[b][k]), _mm512_set1_epi32(static_cast<int>(pair)));
    }
    _mm512_storeu_ps(t.data[c][m], sum);
  }
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::load_config
#define _tile_release() (emulated::tiles().configured = 0)
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_dpbf16ps emulated::dot_tiles
#define _mm512_dpbf16_ps(sum, a, b) emulated::dot_pairs(sum, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b))
#define _mm512_cvtneps_pbh emulated::narrow
