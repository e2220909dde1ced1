// Four floats at a time in plain C++ (the compiler's vector extension): what every processor runs.
#pragma once

#include <cstdint>

namespace moesaic {
namespace {

struct Portable {
  using F = float __attribute__((vector_size(16)));
  using I = int32_t __attribute__((vector_size(16)));
  using U = uint32_t __attribute__((vector_size(16)));
  static constexpr int kWidth = 4;
  static constexpr int kAccumulators = 8;  // that stay in registers together with their operands
  static constexpr int64_t kAheadBytes = 1024;

  template <class T>
  static T read(const void* p) {
    T value;
    __builtin_memcpy(&value, p, sizeof value);
    return value;
  }
  static F load(const float* p) { return read<F>(p); }
  static void store(float* p, F v) { __builtin_memcpy(p, &v, sizeof v); }
  static F set1(float v) { return F{v, v, v, v}; }
  static F add(F a, F b) { return a + b; }
  static F mul(F a, F b) { return a * b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F max(F a, F b) { return a > b ? a : b; }  // b where either is NaN
  static F min(F a, F b) { return a < b ? a : b; }
  static F abs(F v) { return reinterpret_cast<F>(reinterpret_cast<I>(v) & 0x7fffffff); }
  static F where_negative(F x, F a, F b) { return x < set1(0.0f) ? a : b; }
  // Good below 2^22 in magnitude.
  static F round(F v) {
    const F magic = set1(0x1.8p23f);
    return (v + magic) - magic;
  }
  // 2^n of whole n in [-126, 127].
  static F pow2(F n) { return reinterpret_cast<F>((__builtin_convertvector(n, I) + 127) << 23); }
  static float sum(F v) { return (v[0] + v[2]) + (v[1] + v[3]); }

  static void load_bf16_pairs(const uint16_t* p, F& even, F& odd) {
    const U words = read<U>(p);
    even = reinterpret_cast<F>(words << 16);
    odd = reinterpret_cast<F>(words & 0xffff0000u);
  }
  static F load_fp16(const uint16_t* p) {
    const U half = {p[0], p[1], p[2], p[3]};
    const F scaled = reinterpret_cast<F>((half & 0x7fffu) << 13) * set1(0x1p112f);
    const U special = (half & 0x7c00u) == 0x7c00u ? U{} + 0x7f800000u : U{};
    return reinterpret_cast<F>(reinterpret_cast<U>(scaled) | special | ((half & 0x8000u) << 16));
  }
};

}  // namespace
}  // namespace moesaic
