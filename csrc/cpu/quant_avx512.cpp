// Grouped experts in the quantized formats with AVX-512 F, BW, DQ and VL. Includes no library header (see CMakeLists.txt).
#include "quant_avx512.h"

#include "experts_few.h"
#include "experts_panel.h"

namespace moesaic {

const ExpertKernelPair* quant_kernels_avx512(const PageShape& shape) {
  switch (shape.format) {
    case WeightFormat::int8:
      return kernel_pair<Avx512, Int8>();
    case WeightFormat::int4:
      return shape.zero_points ? kernel_pair<Avx512, Int4Zero>() : kernel_pair<Avx512, Int4>();
    case WeightFormat::fp8:
      return kernel_pair<Avx512, Fp8>();
    default:
      return kernel_pair<Avx512, Mxfp4>();
  }
}

}  // namespace moesaic
