// RMSNorm in portable C++, and the choice between it and the AVX2 version.
#include "rms_norm.h"

#include <cmath>

#include "floats.h"

#ifdef MOESAIC_X86
#include <cpuid.h>
#endif

namespace moesaic {
namespace {

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
      return rows_portable<Bf16Bits>;
    case Format::fp16:
      return rows_portable<Fp16Bits>;
    default:
      return rows_portable<Fp32Bits>;
  }
}

}  // namespace moesaic
