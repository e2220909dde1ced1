// Grouped experts in the quantized formats with AVX2, FMA and F16C. Includes no library header (see CMakeLists.txt).
#include "quant_avx2.h"

#include "experts_few.h"
#include "experts_panel.h"

namespace moesaic {

const ExpertKernelPair* quant_kernels_avx2(const PageShape& shape) {
  switch (shape.format) {
    case WeightFormat::int8:
      return kernel_pair<Avx2, Int8>();
    case WeightFormat::int4:
      return shape.zero_points ? kernel_pair<Avx2, Int4Zero>() : kernel_pair<Avx2, Int4>();
    case WeightFormat::fp8:
      return kernel_pair<Avx2, Fp8>();
    default:
      return kernel_pair<Avx2, Mxfp4>();
  }
}

}  // namespace moesaic
