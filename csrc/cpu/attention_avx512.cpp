// Attention's tasks with AVX-512 (F, BW, DQ, VL). Includes no library header (see CMakeLists.txt).
#include <immintrin.h>

#include "attention.h"

namespace moesaic {
namespace {

struct Simd {
  using V = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 4;
  static V zero() { return _mm512_setzero_ps(); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static V set(float x) { return _mm512_set1_ps(x); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }
  static float first(V v) { return _mm512_cvtss_f32(v); }
  static float sum_of(V v) { return _mm512_reduce_add_ps(v); }
  static float max_of(V v) { return _mm512_reduce_max_ps(v); }

  // A polynomial on [-0.5, 0.5], relative error 1e-7; 0 for minus infinity.
  static V exp2(V x) {
    const V whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const V f = _mm512_sub_ps(_mm512_max_ps(set(-200.0f), x), _mm512_max_ps(set(-200.0f), whole));
    V y = set(0.00015345803694799542f);
    y = fma(y, f, set(0.0013399930903688073f));
    y = fma(y, f, set(0.009618489071726799f));
    y = fma(y, f, set(0.05550328642129898f));
    y = fma(y, f, set(0.24022646248340607f));
    y = fma(y, f, set(0.6931471824645996f));
    y = fma(y, f, set(1.0f));
    return _mm512_scalef_ps(y, whole);
  }

  static void store_sums4(float* p, V a, V b, V c, V d) {
    const V ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));  // a0+a2 b0+b2 a1+a3 b1+b3 in every quarter
    const V cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const V abcd = add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }
};

using V = Simd::V;

__mmask16 lanes(int64_t n) { return n >= 16 ? 0xffffu : n <= 0 ? 0u : static_cast<__mmask16>((1u << n) - 1u); }

struct Fp32 {
  static constexpr bool kSplit = false;
  static constexpr bool kWiden = false;
  static int64_t row_bytes(int64_t n) { return 4 * n; }
  static void load(const char* row, int64_t i, V& a, V& b) {
    const float* p = reinterpret_cast<const float*>(row) + i;
    a = _mm512_loadu_ps(p);
    b = _mm512_loadu_ps(p + 16);
  }
  static void load_tail(const char* row, int64_t i, int64_t n, V& a, V& b) {
    const float* p = reinterpret_cast<const float*>(row) + i;
    a = _mm512_maskz_loadu_ps(lanes(n), p);
    b = _mm512_maskz_loadu_ps(lanes(n - 16), p + 16);
  }
};

// A 32-bit lane holds an even element below an odd one: a shift and a mask make floats of them.
struct Bf16 {
  static constexpr bool kSplit = true;
  static constexpr bool kWiden = true;
  static int64_t row_bytes(int64_t n) { return 2 * n; }
  static void split(__m512i pairs, V& a, V& b) {
    a = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    b = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static void load(const char* row, int64_t i, V& a, V& b) {
    // two loads: from one, GCC 12 makes a store to the stack and two loads
    a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(row + 2 * i), 16));
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    b = _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(row + 2 * i), odd));
  }
  static void load_tail(const char* row, int64_t i, int64_t n, V& a, V& b) {
    split(_mm512_maskz_loadu_epi16((1u << n) - 1u, row + 2 * i), a, b);
  }
};

struct Fp16 {
  static constexpr bool kSplit = false;
  static constexpr bool kWiden = true;
  static int64_t row_bytes(int64_t n) { return 2 * n; }
  static void load(const char* row, int64_t i, V& a, V& b) {
    a = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * i)));
    b = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * i + 32)));
  }
  static void load_tail(const char* row, int64_t i, int64_t n, V& a, V& b) {
    a = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(n), row + 2 * i));
    b = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(n - 16), row + 2 * i + 32));
  }
};

struct Int8 {
  static constexpr bool kSplit = false;
  static constexpr bool kWiden = true;
  static int64_t row_bytes(int64_t n) { return n; }
  static V wide(__m128i codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)); }
  static void load(const char* row, int64_t i, V& a, V& b) {
    a = wide(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i)));
    b = wide(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i + 16)));
  }
  static void load_tail(const char* row, int64_t i, int64_t n, V& a, V& b) {
    a = wide(_mm_maskz_loadu_epi8(lanes(n), row + i));
    b = wide(_mm_maskz_loadu_epi8(lanes(n - 16), row + i + 16));
  }
};

struct Int4 {
  static constexpr bool kSplit = true;
  static constexpr bool kWiden = true;
  static int64_t row_bytes(int64_t n) { return (n + 1) / 2; }
  // The permutation looks at the low four bits of an index only.
  static void split(__m128i bytes, V& a, V& b) {
    const V values = _mm512_set_ps(7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8);
    const __m512i pairs = _mm512_cvtepu8_epi32(bytes);
    a = _mm512_permutexvar_ps(pairs, values);
    b = _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), values);
  }
  static void load(const char* row, int64_t i, V& a, V& b) {
    split(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i / 2)), a, b);
  }
  static void load_tail(const char* row, int64_t i, int64_t n, V& a, V& b) {
    split(_mm_maskz_loadu_epi8(lanes((n + 1) / 2), row + i / 2), a, b);
  }
};

}  // namespace
}  // namespace moesaic

#include "attention_span.h"

namespace moesaic {

SpanKernel attention_span_avx512(KvFormat format) { return kernel_of(format); }

}  // namespace moesaic
