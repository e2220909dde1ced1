// Each float format to float and back, rounded to nearest even. For files of the compiler's baseline only: what is inline
// here must not be compiled for more.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace moesaic {

struct Fp32Bits {
  using Bits = float;
  static float load(Bits v) { return v; }
  static Bits store(float v) { return v; }
};

struct Bf16Bits {
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

struct Fp16Bits {
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

}  // namespace moesaic
