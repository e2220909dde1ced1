// Grouped experts with AVX2, FMA and F16C. Includes no library header (see CMakeLists.txt).
#include "experts.h"
#include "experts_few.h"
#include "experts_panel.h"
#include "vec_avx2.h"

namespace moesaic {

const ExpertKernelPair* expert_kernels_avx2(WeightFormat format, WeightFormat x_format) {
  switch (format) {
    case WeightFormat::bf16:
      return x_format == WeightFormat::bf16 ? bf16_kernel_pair<Avx2>() : kernel_pair<Avx2, Bf16>();
    case WeightFormat::fp16:
      return kernel_pair<Avx2, Fp16>();
    default:
      return kernel_pair<Avx2, Fp32>();
  }
}

}  // namespace moesaic
