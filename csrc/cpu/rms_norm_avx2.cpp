// RMSNorm with AVX2, FMA and F16C, eight elements at a time. Includes no library header (see CMakeLists.txt).
#include <immintrin.h>

#include "rms_norm.h"

namespace moesaic {
namespace {

struct Fp32 {
  using Bits = float;
  static __m256 load(const Bits* p) { return _mm256_loadu_ps(p); }
  static void store(Bits* p, __m256 v) { _mm256_storeu_ps(p, v); }
  static __m256 rounded(__m256 v) { return v; }
};

struct Bf16 {
  using Bits = uint16_t;
  static __m256 load(const Bits* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  // The upper half of each lane, rounded to nearest even; a NaN keeps its upper bits and stays one.
  static __m256i round_bits(__m256 v) {
    const __m256i wide = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(wide, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(wide, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_or_si256(wide, _mm256_set1_epi32(0x400000));
    const __m256 is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(near), _mm256_castsi256_ps(nan), is_nan));
  }
  static __m256 rounded(__m256 v) {
    return _mm256_castsi256_ps(_mm256_and_si256(round_bits(v), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static void store(Bits* p, __m256 v) {
    const __m256i high = _mm256_srli_epi32(round_bits(v), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
};

struct Fp16 {
  using Bits = uint16_t;
  static __m256 load(const Bits* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static void store(Bits* p, __m256 v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static __m256 rounded(__m256 v) { return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
};

float sum(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  s = _mm_add_ss(s, _mm_movehdup_ps(s));
  return _mm_cvtss_f32(s);
}

// The last `count` < 8 elements of a row as a full vector, the rest zero.
template <class F>
__m256 load_tail(const typename F::Bits* p, int64_t count) {
  alignas(32) typename F::Bits padded[8] = {};
  for (int64_t i = 0; i < count; ++i) {
    padded[i] = p[i];
  }
  return F::load(padded);
}

template <class F>
void rows_avx2(const void* x, const void* weight, void* y, int64_t rows, int64_t hidden, float eps) {
  const auto* w = static_cast<const typename F::Bits*>(weight);
  const int64_t tail = hidden % 8;
  const int64_t whole = hidden - tail;
  for (int64_t row = 0; row < rows; ++row) {
    const auto* in = static_cast<const typename F::Bits*>(x) + row * hidden;
    auto* out = static_cast<typename F::Bits*>(y) + row * hidden;
    __m256 even = _mm256_setzero_ps();
    __m256 odd = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 16 <= whole; i += 16) {
      const __m256 a = F::load(in + i);
      const __m256 b = F::load(in + i + 8);
      even = _mm256_fmadd_ps(a, a, even);
      odd = _mm256_fmadd_ps(b, b, odd);
    }
    for (; i < whole; i += 8) {
      const __m256 a = F::load(in + i);
      even = _mm256_fmadd_ps(a, a, even);
    }
    if (tail != 0) {
      const __m256 a = load_tail<F>(in + whole, tail);
      odd = _mm256_fmadd_ps(a, a, odd);
    }
    const float mean = sum(_mm256_add_ps(even, odd)) / static_cast<float>(hidden);
    const __m256 scale = _mm256_set1_ps(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps))));
    for (i = 0; i < whole; i += 8) {
      const __m256 normalized = F::rounded(_mm256_mul_ps(F::load(in + i), scale));
      F::store(out + i, _mm256_mul_ps(normalized, F::load(w + i)));
    }
    if (tail != 0) {
      const __m256 normalized = F::rounded(_mm256_mul_ps(load_tail<F>(in + whole, tail), scale));
      typename F::Bits last[8];
      F::store(last, _mm256_mul_ps(normalized, load_tail<F>(w + whole, tail)));
      for (int64_t k = 0; k < tail; ++k) {
        out[whole + k] = last[k];
      }
    }
  }
}

}  // namespace

RmsNormRows rms_norm_rows_avx2(Format format) {
  switch (format) {
    case Format::bf16:
      return rows_avx2<Bf16>;
    case Format::fp16:
      return rows_avx2<Fp16>;
    default:
      return rows_avx2<Fp32>;
  }
}

}  // namespace moesaic
