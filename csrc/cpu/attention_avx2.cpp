// Attention's tasks with AVX2, FMA and F16C. Includes no library header (see CMakeLists.txt).
#include <immintrin.h>

#include "attention.h"

namespace moesaic {
namespace {

struct Simd {
  using V = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 2;
  static V zero() { return _mm256_setzero_ps(); }
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  static V set(float x) { return _mm256_set1_ps(x); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm256_max_ps(a, b); }
  static float first(V v) { return _mm256_cvtss_f32(v); }
  static float sum_of(V v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float max_of(V v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  // A polynomial on [-0.5, 0.5], relative error 1e-7; 0 below the smallest normal number. A NaN stays one: max gives
  // its second operand then, and adding to the exponent leaves NaN.
  static V exp2(V x) {
    const V clamped = _mm256_max_ps(set(-126.0f), x);
    const V whole = _mm256_round_ps(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const V f = _mm256_sub_ps(clamped, whole);
    V y = set(0.00015345803694799542f);
    y = fma(y, f, set(0.0013399930903688073f));
    y = fma(y, f, set(0.009618489071726799f));
    y = fma(y, f, set(0.05550328642129898f));
    y = fma(y, f, set(0.24022646248340607f));
    y = fma(y, f, set(0.6931471824645996f));
    y = fma(y, f, set(1.0f));
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23);
    y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), exponent));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, set(-126.0f), _CMP_LT_OQ), y);
  }

  static void store_sums4(float* p, V a, V b, V c, V d) {
    const V abcd = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
  }
};

using V = Simd::V;

// Gives `load` the bytes of a row's last elements with zeros behind them.
template <class F>
void padded(const char* row, int64_t i, int64_t n, V& a, V& b) {
  alignas(32) char bytes[64] = {};
  const char* from = row + F::row_bytes(i);
  const int64_t count = F::row_bytes(n);
  for (int64_t k = 0; k < count; ++k) {
    bytes[k] = from[k];
  }
  F::load(bytes, 0, a, b);
}

struct Fp32 {
  static constexpr bool kSplit = false;
  static constexpr bool kWiden = false;
  static int64_t row_bytes(int64_t n) { return 4 * n; }
  static void load(const char* row, int64_t i, V& a, V& b) {
    const float* p = reinterpret_cast<const float*>(row) + i;
    a = _mm256_loadu_ps(p);
    b = _mm256_loadu_ps(p + 8);
  }
  static void load_tail(const char* row, int64_t i, int64_t n, V& a, V& b) { padded<Fp32>(row, i, n, a, b); }
};

// A 32-bit lane holds an even element below an odd one: a shift and a mask make floats of them.
struct Bf16 {
  static constexpr bool kSplit = true;
  static constexpr bool kWiden = true;
  static int64_t row_bytes(int64_t n) { return 2 * n; }
  static void load(const char* row, int64_t i, V& a, V& b) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * i));
    a = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    b = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static void load_tail(const char* row, int64_t i, int64_t n, V& a, V& b) { padded<Bf16>(row, i, n, a, b); }
};

struct Fp16 {
  static constexpr bool kSplit = false;
  static constexpr bool kWiden = true;
  static int64_t row_bytes(int64_t n) { return 2 * n; }
  static void load(const char* row, int64_t i, V& a, V& b) {
    a = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * i)));
    b = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * i + 16)));
  }
  static void load_tail(const char* row, int64_t i, int64_t n, V& a, V& b) { padded<Fp16>(row, i, n, a, b); }
};

struct Int8 {
  static constexpr bool kSplit = false;
  static constexpr bool kWiden = true;
  static int64_t row_bytes(int64_t n) { return n; }
  static void load(const char* row, int64_t i, V& a, V& b) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i));
    a = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    b = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)));
  }
  static void load_tail(const char* row, int64_t i, int64_t n, V& a, V& b) { padded<Int8>(row, i, n, a, b); }
};

struct Int4 {
  static constexpr bool kSplit = true;
  static constexpr bool kWiden = true;
  static int64_t row_bytes(int64_t n) { return (n + 1) / 2; }
  static V wide(__m256i codes) { return _mm256_cvtepi32_ps(_mm256_sub_epi32(codes, _mm256_set1_epi32(8))); }
  static void load(const char* row, int64_t i, V& a, V& b) {
    const __m256i pairs = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + i / 2)));
    a = wide(_mm256_and_si256(pairs, _mm256_set1_epi32(15)));
    b = wide(_mm256_srli_epi32(pairs, 4));
  }
  static void load_tail(const char* row, int64_t i, int64_t n, V& a, V& b) { padded<Int4>(row, i, n, a, b); }
};

}  // namespace
}  // namespace moesaic

#include "attention_span.h"

namespace moesaic {

SpanKernel attention_span_avx2(KvFormat format) { return kernel_of(format); }

}  // namespace moesaic
