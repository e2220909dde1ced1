// Attention's tasks on any processor: vectors of four floats in the compiler's own notation, which every baseline has.
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "floats.h"

namespace moesaic {
namespace {

struct Simd {
  typedef float V __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kRows = 2;
  static V zero() { return V{}; }
  static V load(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
  static V set(float x) { return V{x, x, x, x}; }
  static V add(V a, V b) { return a + b; }
  static V mul(V a, V b) { return a * b; }
  static V fma(V a, V b, V c) { return a * b + c; }
  static V max(V a, V b) { return a > b ? a : b; }
  static float first(V v) { return v[0]; }
  static float sum_of(V v) { return (v[0] + v[2]) + (v[1] + v[3]); }
  static float max_of(V v) {
    const float a = v[0] > v[1] ? v[0] : v[1];
    const float b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
  }

  // A polynomial on [-0.5, 0.5], relative error 2e-7; 0 below the smallest normal number. A NaN stays one: it takes
  // the second branch of every comparison, and adding to the exponent leaves NaN.
  static V exp2(V x) {
    const V clamped = x < set(-126.0f) ? set(-126.0f) : x;
    const V magic = set(12582912.0f);  // 1.5 * 2^23: adding it leaves no room for a fraction
    const V shifted = clamped + magic;
    const V f = clamped - (shifted - magic);
    V y = set(0.00015345803694799542f);
    y = y * f + set(0.0013399930903688073f);
    y = y * f + set(0.009618489071726799f);
    y = y * f + set(0.05550328642129898f);
    y = y * f + set(0.24022646248340607f);
    y = y * f + set(0.6931471824645996f);
    y = y * f + set(1.0f);
    const I scaled = (I)y + ((I)shifted << 23);
    return x < set(-126.0f) ? zero() : (V)scaled;
  }

  static void store_sums4(float* p, V a, V b, V c, V d) {
    p[0] = sum_of(a);
    p[1] = sum_of(b);
    p[2] = sum_of(c);
    p[3] = sum_of(d);
  }
};

using V = Simd::V;

// A format's element by element loading; `Decode` gives element i of a row as float.
template <class Decode, bool kIsWide>
struct Elements {
  static constexpr bool kSplit = false;
  static constexpr bool kWiden = kIsWide;
  static int64_t row_bytes(int64_t n) { return Decode::row_bytes(n); }
  static void load(const char* row, int64_t i, V& a, V& b) {
    a = V{Decode::at(row, i), Decode::at(row, i + 1), Decode::at(row, i + 2), Decode::at(row, i + 3)};
    b = V{Decode::at(row, i + 4), Decode::at(row, i + 5), Decode::at(row, i + 6), Decode::at(row, i + 7)};
  }
  static void load_tail(const char* row, int64_t i, int64_t n, V& a, V& b) {
    a = b = V{};
    for (int k = 0; k < 4; ++k) {
      a[k] = k < n ? Decode::at(row, i + k) : 0.0f;
      b[k] = k + 4 < n ? Decode::at(row, i + k + 4) : 0.0f;
    }
  }
};

struct DecodeFp32 {
  static int64_t row_bytes(int64_t n) { return 4 * n; }
  static float at(const char* row, int64_t i) {
    float x;
    std::memcpy(&x, row + 4 * i, sizeof x);
    return x;
  }
};

template <class Half>
struct DecodeHalf {
  static int64_t row_bytes(int64_t n) { return 2 * n; }
  static float at(const char* row, int64_t i) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, sizeof bits);
    return Half::load(bits);
  }
};

struct DecodeInt8 {
  static int64_t row_bytes(int64_t n) { return n; }
  static float at(const char* row, int64_t i) { return static_cast<float>(static_cast<int8_t>(row[i])); }
};

struct DecodeInt4 {
  static int64_t row_bytes(int64_t n) { return (n + 1) / 2; }
  static float at(const char* row, int64_t i) {
    const int byte = static_cast<uint8_t>(row[i / 2]);
    return static_cast<float>((i % 2 == 0 ? byte & 15 : byte >> 4) - 8);
  }
};

using Fp32 = Elements<DecodeFp32, false>;
using Bf16 = Elements<DecodeHalf<Bf16Bits>, true>;
using Fp16 = Elements<DecodeHalf<Fp16Bits>, true>;
using Int8 = Elements<DecodeInt8, true>;
using Int4 = Elements<DecodeInt4, true>;

}  // namespace
}  // namespace moesaic

#include "attention_span.h"

namespace moesaic {

SpanKernel attention_span_portable(KvFormat format) { return kernel_of(format); }

}  // namespace moesaic
