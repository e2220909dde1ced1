// The quantized weight formats with AVX-512: sixteen lanes. Nibbles are looked up in a register that holds all sixteen values.
#pragma once

#include "quant_layout.h"
#include "vec_avx512.h"

namespace moesaic {
namespace {

inline __m512i nibble_words(const QuantRow& row, int64_t k) { return _mm512_loadu_si512(row.codes + k / 2); }

// The codes of `count` < 128 elements, the rest zero; touches no byte behind them.
inline __m512i nibble_words_part(const QuantRow& row, int64_t k, int64_t count) {
  const __mmask64 mask = ~__mmask64{0} >> (64 - (count + 1) / 2);
  return _mm512_maskz_loadu_epi8(mask, row.codes + k / 2);
}

// Lookups use the lowest four bits of a lane: nothing is masked.
inline void look_up(__m512i words, __m512 table, __m512 out[]) {
  out[0] = _mm512_permutexvar_ps(words, table);
  out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4), table);
  out[2] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 8), table);
  out[3] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 12), table);
  out[4] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 16), table);
  out[5] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 20), table);
  out[6] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 24), table);
  out[7] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 28), table);
}

inline __m512 int4_table() {
  return _mm512_setr_ps(-8.f, -7.f, -6.f, -5.f, -4.f, -3.f, -2.f, -1.f, 0.f, 1.f, 2.f, 3.f, 4.f, 5.f, 6.f, 7.f);
}

template <class V, bool kZeros>
struct Int4Lanes : NibbleFormat {
  static constexpr Scale kScale = Scale::step;
  static constexpr int kVectors = 8;
  static constexpr int64_t kStep = 128;

  static void load(const Row& row, int64_t k, __m512 out[]) { unpack(row, nibble_words(row, k), k, kStep, out); }
  static void load_part(const Row& row, int64_t k, int64_t count, __m512 out[]) {
    unpack(row, nibble_words_part(row, k, count), k, count, out);
  }
  static __m512 scale(const Row& row, int64_t k) { return scale_part(row, k, kStep); }
  static __m512 scale_part(const Row& row, int64_t k, int64_t count) {
    const int64_t first = k >> row.group_shift, last = (k + count - 1) >> row.group_shift;
    const __mmask8 mask = static_cast<__mmask8>((2u << (last - first)) - 1u);
    const __m128i halves = _mm_maskz_loadu_epi16(mask, row.scales + 2 * first);
    return _mm512_cvtph_ps(_mm256_permutexvar_epi16(half_of_lane(row), _mm256_castsi128_si256(halves)));
  }
  static int64_t place(int64_t k) { return nibble_place(k, V::kWidth); }

 private:
  // A lane's word holds elements 8 * lane to 8 * lane + 7 of the step.
  static __m256i half_of_lane(const Row& row) {
    const __m256i lane = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm256_srl_epi16(lane, _mm_cvtsi32_si128(row.group_shift - 3));
  }
  static void unpack(const Row& row, __m512i words, int64_t k, int64_t count, __m512 out[]) {
    look_up(words, int4_table(), out);
    if (kZeros) {
      const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      const __m512i group = _mm512_srl_epi32(lane, _mm_cvtsi32_si128(row.group_shift - 3));
      const __m512i bits = _mm512_set1_epi32(static_cast<int>(zero_bits(row, k, count)));
      const __m512 zero = _mm512_permutexvar_ps(_mm512_srlv_epi32(bits, _mm512_slli_epi32(group, 2)), int4_table());
      for (int v = 0; v < kVectors; ++v) {
        out[v] = _mm512_sub_ps(out[v], zero);
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
  static constexpr int64_t kStep = 128;

  static void load(const Row& row, int64_t k, __m512 out[]) { look_up(nibble_words(row, k), table(), out); }
  static void load_part(const Row& row, int64_t k, int64_t count, __m512 out[]) {
    look_up(nibble_words_part(row, k, count), table(), out);
  }
  static __m512 scale(const Row& row, int64_t k) { return powers(_mm_cvtsi32_si128(read<int>(row.scales + k / 32))); }
  static __m512 scale_part(const Row& row, int64_t k, int64_t count) {
    const __mmask16 mask = static_cast<__mmask16>((1u << ((count + 31) / 32)) - 1u);
    return powers(_mm_maskz_loadu_epi8(mask, row.scales + k / 32));
  }
  static int64_t place(int64_t k) { return nibble_place(k, V::kWidth); }

 private:
  static __m512 table() {
    return _mm512_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f);
  }
  // The byte is a float's exponent: the lowest one, 2^-127, gives zero instead.
  static __m512 powers(__m128i bytes) {
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i wide = _mm512_castsi128_si512(_mm_slli_epi32(_mm_cvtepu8_epi32(bytes), 23));
    return _mm512_castsi512_ps(_mm512_permutexvar_epi32(lane, wide));
  }
};

template <class V>
struct Int8 : ByteFormat {
  static constexpr Scale kScale = Scale::row;
  static constexpr int kVectors = 4;
  static constexpr int64_t kStep = 64;

  static void load(const Row& row, int64_t k, __m512 out[]) {
    for (int v = 0; v < kVectors; ++v) {
      out[v] = widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row.codes + k + 16 * v)));
    }
  }
  static void load_part(const Row& row, int64_t k, int64_t count, __m512 out[]) {
    const __m512i codes = _mm512_maskz_loadu_epi8((__mmask64{1} << count) - 1, row.codes + k);
    out[0] = widened(_mm512_castsi512_si128(codes));
    out[1] = widened(_mm512_extracti32x4_epi32(codes, 1));
    out[2] = widened(_mm512_extracti32x4_epi32(codes, 2));
    out[3] = widened(_mm512_extracti32x4_epi32(codes, 3));
  }
  static float row_scale(const Row& row) { return read<float>(row.scales); }
  static int64_t place(int64_t k) { return k; }

 private:
  static __m512 widened(__m128i codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)); }
};

// E4M3 is an fp16 number 2^8 too small, once its sign is moved: also where it is subnormal.
template <class V>
struct Fp8 : ByteFormat {
  static constexpr Scale kScale = Scale::step;
  static constexpr int kVectors = 4;
  static constexpr int64_t kStep = 64;

  static void load(const Row& row, int64_t k, __m512 out[]) {
    widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.codes + k)), out);
    widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.codes + k + 32)), out + 2);
  }
  static void load_part(const Row& row, int64_t k, int64_t count, __m512 out[]) {
    const __m512i codes = _mm512_maskz_loadu_epi8((__mmask64{1} << count) - 1, row.codes + k);
    widen(_mm512_castsi512_si256(codes), out);
    widen(_mm512_extracti64x4_epi64(codes, 1), out + 2);
  }
  static __m512 scale(const Row& row, int64_t k) {
    return _mm512_set1_ps(256.0f * read<float>(row.scales + k / kFp8Tile * 4));
  }
  static __m512 scale_part(const Row& row, int64_t k, int64_t) { return scale(row, k); }
  static int64_t place(int64_t k) { return k; }

 private:
  static void widen(__m256i codes, __m512 out[]) {
    const __m512i shifted = _mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7);
    const __m512i halves = _mm512_and_si512(shifted, _mm512_set1_epi16(static_cast<short>(0xbfff)));
    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
  }
};

}  // namespace
}  // namespace moesaic
