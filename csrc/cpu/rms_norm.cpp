// RMSNorm in portable C++, and the choice between it and the AVX2 version.
#include "rms_norm.h"

#include <cmath>
#include <cstring>

#ifdef MOESAIC_X86
#include <cpuid.h>
#endif

namespace moesaic {
namespace {

struct Fp32 {
  using Bits = float;
  static float load(Bits v) { return v; }
  static Bits store(float v) { return v; }
};

struct Bf16 {
  using Bits = uint16_t;
  static float load(Bits v) {
    const uint32_t wide = static_cast<uint32_t>(v) << 16;
    float f;
    std::memcpy(&f, &wide, sizeof f);
    return f;
  }
  static Bits store(float v) {
    uint32_t wide;
    std::memcpy(&wide, &v, sizeof wide);
    if ((wide & 0x7fffffffu) > 0x7f800000u) {
      return static_cast<Bits>((wide >> 16) | 0x40u);  // rounding could carry a NaN into infinity
    }
    return static_cast<Bits>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
  }
};

struct Fp16 {
  using Bits = uint16_t;
  static float load(Bits v) {
    const uint32_t sign = static_cast<uint32_t>(v & 0x8000u) << 16;
    const uint32_t exponent = (v >> 10) & 0x1fu;
    const uint32_t mantissa = v & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
      const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
      return sign != 0 ? -magnitude : magnitude;
    }
    const uint32_t wide = exponent == 31 ? 0x7f800000u | (mantissa << 13) : ((exponent + 112) << 23) | (mantissa << 13);
    const uint32_t bits = sign | wide;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
  }
  static Bits store(float v) {
    uint32_t wide;
    std::memcpy(&wide, &v, sizeof wide);
    const Bits sign = static_cast<Bits>((wide >> 16) & 0x8000u);
    const uint32_t magnitude = wide & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      return sign | 0x7e00u;
    }
    if (magnitude >= 0x477ff000u) {  // 65520 and above rounds to infinity
      return sign | 0x7c00u;
    }
    if (magnitude < 0x38800000u) {  // below 2^-14: subnormal, in units of 2^-24
      return sign | static_cast<Bits>(std::nearbyint(std::ldexp(std::fabs(v), 24)));
    }
    return sign | static_cast<Bits>((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
  }
};

template <class F>
void rows_portable(const void* x, const void* weight, void* y, int64_t rows, int64_t hidden, float eps) {
  const auto* w = static_cast<const typename F::Bits*>(weight);
  for (int64_t row = 0; row < rows; ++row) {
    const auto* in = static_cast<const typename F::Bits*>(x) + row * hidden;
    auto* out = static_cast<typename F::Bits*>(y) + row * hidden;
    double squares = 0.0;
    for (int64_t i = 0; i < hidden; ++i) {
      const double v = F::load(in[i]);
      squares += v * v;
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(squares / static_cast<double>(hidden)) + eps);
    for (int64_t i = 0; i < hidden; ++i) {
      const float normalized = F::load(F::store(F::load(in[i]) * scale));
      out[i] = F::store(normalized * F::load(w[i]));
    }
  }
}

#ifdef MOESAIC_X86
// cpu_supports asks the operating system too; F16C uses AVX's registers, so its CPUID bit is enough beside AVX2.
bool has_avx2() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  return has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

}  // namespace

RmsNormRows rms_norm_rows(Format format) {
#ifdef MOESAIC_X86
  if (has_avx2()) {
    return rms_norm_rows_avx2(format);
  }
#endif
  switch (format) {
    case Format::bf16:
      return rows_portable<Bf16>;
    case Format::fp16:
      return rows_portable<Fp16>;
    default:
      return rows_portable<Fp32>;
  }
}

}  // namespace moesaic
