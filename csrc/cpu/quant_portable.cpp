// Grouped experts in the quantized formats in plain C++. Includes no library header (see CMakeLists.txt).
#include "quant_portable.h"

#include "experts_few.h"
#include "experts_panel.h"

namespace moesaic {

const ExpertKernelPair* quant_kernels_portable(const PageShape& shape) {
  switch (shape.format) {
    case WeightFormat::int8:
      return kernel_pair<Portable, Int8>();
    case WeightFormat::int4:
      return shape.zero_points ? kernel_pair<Portable, Int4Zero>() : kernel_pair<Portable, Int4>();
    case WeightFormat::fp8:
      return kernel_pair<Portable, Fp8>();
    default:
      return kernel_pair<Portable, Mxfp4>();
  }
}

}  // namespace moesaic
