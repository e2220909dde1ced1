// The quantized formats seen from outside: their numbers, the size of a page, the kernels for a processor.
#include "quant.h"

#include "quant_layout.h"

namespace moesaic {

bool set_format(int64_t number, PageShape& shape) {
  constexpr int64_t kInt4Groups[] = {32, 64, 128};
  if (number < 0 || number >= kNumFormatNumbers) {
    return false;
  }
  shape.format = static_cast<WeightFormat>(number < kFirstInt4Number ? number : 4);
  if (number == kFp8Number) {
    shape.format = WeightFormat::fp8;
  } else if (number == kMxfp4Number) {
    shape.format = WeightFormat::mxfp4;
  } else if (number >= kFirstInt4Number) {
    shape.group = kInt4Groups[(number - kFirstInt4Number) % 3];
    shape.zero_points = number >= kFirstInt4Number + 3;
  }
  return true;
}

int64_t page_bytes(const PageShape& shape) {
  if (!is_quantized(shape.format)) {
    return 3 * shape.page_units * shape.hidden * (shape.format == WeightFormat::fp32 ? 4 : 2);
  }
  return quant_page_bytes(shape);
}

const ExpertKernelPair& quant_kernels(const PageShape& shape, Isa isa) {
#ifdef MOESAIC_X86
  if (isa >= Isa::avx512) {
    return *quant_kernels_avx512(shape);
  }
  if (isa >= Isa::avx2) {
    return *quant_kernels_avx2(shape);
  }
#else
  static_cast<void>(isa);
#endif
  return *quant_kernels_portable(shape);
}

}  // namespace moesaic
