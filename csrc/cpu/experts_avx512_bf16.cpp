// Grouped experts with AVX512-BF16: many rows by products of bf16 pairs, few rows as with AVX-512, whose arithmetic
// already outruns the memory. Includes no library header (see CMakeLists.txt).
#include "experts.h"
#include "experts_few.h"
#include "experts_pairs.h"
#include "experts_panel.h"

namespace moesaic {

const ExpertKernelPair* expert_kernels_avx512_bf16(WeightFormat format, WeightFormat x_format) {
  static const ExpertKernelPair pair{Bf16Rows<Avx512>::kernels(), ManyRows<Panel<Bf16Pairs>>::kernels()};
  return format == WeightFormat::bf16 && x_format == WeightFormat::bf16 ? &pair : nullptr;
}

}  // namespace moesaic
