// Grouped experts with AVX-512 F, BW, DQ and VL. Includes no library header (see CMakeLists.txt).
#include "experts.h"
#include "experts_few.h"
#include "experts_panel.h"
#include "vec_avx512.h"

namespace moesaic {

const ExpertKernelPair* expert_kernels_avx512(WeightFormat format, WeightFormat x_format) {
  switch (format) {
    case WeightFormat::bf16:
      return x_format == WeightFormat::bf16 ? bf16_kernel_pair<Avx512>() : kernel_pair<Avx512, Bf16>();
    case WeightFormat::fp16:
      return kernel_pair<Avx512, Fp16>();
    default:
      return kernel_pair<Avx512, Fp32>();
  }
}

}  // namespace moesaic
