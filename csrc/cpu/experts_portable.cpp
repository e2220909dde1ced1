// Grouped experts in plain C++. Includes no library header (see CMakeLists.txt).
#include "experts.h"
#include "experts_few.h"
#include "experts_panel.h"
#include "vec_portable.h"

namespace moesaic {

const ExpertKernelPair* expert_kernels_portable(WeightFormat format, WeightFormat x_format) {
  switch (format) {
    case WeightFormat::bf16:
      return x_format == WeightFormat::bf16 ? bf16_kernel_pair<Portable>() : kernel_pair<Portable, Bf16>();
    case WeightFormat::fp16:
      return kernel_pair<Portable, Fp16>();
    default:
      return kernel_pair<Portable, Fp32>();
  }
}

}  // namespace moesaic
