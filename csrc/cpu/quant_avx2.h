// The quantized weight formats with AVX2: eight lanes.
#pragma once

#include "quant_layout.h"
#include "vec_avx2.h"

namespace moesaic {
namespace {

inline __m256i nibble_words(const QuantRow& row, int64_t k) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.codes + k / 2));
}

// The codes of `count` < 64 elements, the rest zero.
inline __m256i nibble_words_part(const QuantRow& row, int64_t k, int64_t count) {
  alignas(32) uint8_t rest[32] = {};
  __builtin_memcpy(rest, row.codes + k / 2, static_cast<size_t>((count + 1) / 2));
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(rest));
}

template <class V, bool kZeros>
struct Int4Lanes : NibbleFormat {
  static constexpr Scale kScale = Scale::step;
  static constexpr int kVectors = 8;
  static constexpr int64_t kStep = 64;

  static void load(const Row& row, int64_t k, __m256 out[]) { unpack(row, nibble_words(row, k), k, kStep, out); }
  static void load_part(const Row& row, int64_t k, int64_t count, __m256 out[]) {
    unpack(row, nibble_words_part(row, k, count), k, count, out);
  }
  static __m256 scale(const Row& row, int64_t k) { return scale_part(row, k, kStep); }
  static __m256 scale_part(const Row& row, int64_t k, int64_t count) {
    const uint8_t* at = row.scales + 2 * (k >> row.group_shift);
    uint32_t halves = read<uint16_t>(at);
    const bool two = row.group_shift == 5 && count > 32;
    halves |= static_cast<uint32_t>(two ? read<uint16_t>(at + 2) : halves) << 16;
    const __m128i of_lane = _mm_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3);
    return _mm256_cvtph_ps(_mm_shuffle_epi8(_mm_cvtsi32_si128(static_cast<int>(halves)), of_lane));
  }
  static int64_t place(int64_t k) { return nibble_place(k, V::kWidth); }

 private:
  template <int kShift>
  static __m256 signed_nibble(__m256i words) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 28 - kShift), 28));
  }
  static void unpack(const Row& row, __m256i words, int64_t k, int64_t count, __m256 out[]) {
    words = _mm256_xor_si256(words, _mm256_set1_epi32(static_cast<int>(0x88888888u)));  // code - 8, in two's complement
    out[0] = signed_nibble<0>(words);
    out[1] = signed_nibble<4>(words);
    out[2] = signed_nibble<8>(words);
    out[3] = signed_nibble<12>(words);
    out[4] = signed_nibble<16>(words);
    out[5] = signed_nibble<20>(words);
    out[6] = signed_nibble<24>(words);
    out[7] = signed_nibble<28>(words);
    if (kZeros) {
      const uint32_t bits = zero_bits(row, k, count);
      const float first = static_cast<float>(static_cast<int>(bits & 15u) - 8);
      const float second = row.group_shift == 5 ? static_cast<float>(static_cast<int>(bits >> 4 & 15u) - 8) : first;
      const __m256 zero = _mm256_setr_ps(first, first, first, first, second, second, second, second);
      for (int v = 0; v < kVectors; ++v) {
        out[v] = _mm256_sub_ps(out[v], zero);
      }
    }
  }
};

template <class V>
struct Int4 : Int4Lanes<V, false> {};

template <class V>
struct Int4Zero : Int4Lanes<V, true> {};

template <class V>
struct Mxfp4 : NibbleFormat {
  static constexpr Scale kScale = Scale::step;
  static constexpr int kVectors = 8;
  static constexpr int64_t kStep = 64;

  static void load(const Row& row, int64_t k, __m256 out[]) { unpack(nibble_words(row, k), out); }
  static void load_part(const Row& row, int64_t k, int64_t count, __m256 out[]) {
    unpack(nibble_words_part(row, k, count), out);
  }
  static __m256 scale(const Row& row, int64_t k) { return scale_part(row, k, kStep); }
  // The byte is a float's exponent: the lowest one, 2^-127, gives zero instead.
  static __m256 scale_part(const Row& row, int64_t k, int64_t count) {
    const uint8_t* at = row.scales + k / 32;
    const int first = at[0] << 23, second = count > 32 ? at[1] << 23 : first;
    return _mm256_castsi256_ps(_mm256_setr_epi32(first, first, first, first, second, second, second, second));
  }
  static int64_t place(int64_t k) { return nibble_place(k, V::kWidth); }

 private:
  // Lookups use the lowest three bits of a lane; the fourth is the sign.
  template <int kShift>
  static __m256 value(__m256i words) {
    const __m256 sizes = _mm256_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f);
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(words, 28 - kShift),
                                          _mm256_set1_epi32(static_cast<int>(0x80000000u)));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(sizes, _mm256_srli_epi32(words, kShift)), _mm256_castsi256_ps(sign));
  }
  static void unpack(__m256i words, __m256 out[]) {
    out[0] = value<0>(words);
    out[1] = value<4>(words);
    out[2] = value<8>(words);
    out[3] = value<12>(words);
    out[4] = value<16>(words);
    out[5] = value<20>(words);
    out[6] = value<24>(words);
    out[7] = value<28>(words);
  }
};

template <class V>
struct Int8 : ByteFormat {
  static constexpr Scale kScale = Scale::row;
  static constexpr int kVectors = 4;
  static constexpr int64_t kStep = 32;

  static void load(const Row& row, int64_t k, __m256 out[]) { widen(row.codes + k, out); }
  static void load_part(const Row& row, int64_t k, int64_t count, __m256 out[]) {
    alignas(32) uint8_t rest[kStep] = {};
    __builtin_memcpy(rest, row.codes + k, static_cast<size_t>(count));
    widen(rest, out);
  }
  static float row_scale(const Row& row) { return read<float>(row.scales); }
  static int64_t place(int64_t k) { return k; }

 private:
  static void widen(const uint8_t* codes, __m256 out[]) {
    for (int v = 0; v < kVectors; ++v) {
      const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * v));
      out[v] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
    }
  }
};

// E4M3 is an fp16 number 2^8 too small, once its sign is moved: also where it is subnormal.
template <class V>
struct Fp8 : ByteFormat {
  static constexpr Scale kScale = Scale::step;
  static constexpr int kVectors = 4;
  static constexpr int64_t kStep = 32;

  static void load(const Row& row, int64_t k, __m256 out[]) { widen(row.codes + k, out); }
  static void load_part(const Row& row, int64_t k, int64_t count, __m256 out[]) {
    alignas(32) uint8_t rest[kStep] = {};
    __builtin_memcpy(rest, row.codes + k, static_cast<size_t>(count));
    widen(rest, out);
  }
  static __m256 scale(const Row& row, int64_t k) {
    return _mm256_set1_ps(256.0f * read<float>(row.scales + k / kFp8Tile * 4));
  }
  static __m256 scale_part(const Row& row, int64_t k, int64_t) { return scale(row, k); }
  static int64_t place(int64_t k) { return k; }

 private:
  static void widen(const uint8_t* codes, __m256 out[]) {
    for (int v = 0; v < kVectors; v += 2) {
      const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 8 * v));
      const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(sixteen), 7);
      const __m256i halves = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xbfff)));
      out[v] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
      out[v + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    }
  }
};

}  // namespace
}  // namespace moesaic
