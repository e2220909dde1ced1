// The quantized formats seen from outside: their numbers, the size of a page, the kernels for a processor.
#pragma once

#include "experts.h"
#include "isa.h"

namespace moesaic {

// A format as a caller numbers it: those of WeightFormat up to int8, then int4 in groups of 32, 64 and 128, the same
// with zero points, fp8, mxfp4.
constexpr int64_t kFirstInt4Number = 4;
constexpr int64_t kFp8Number = 10;
constexpr int64_t kMxfp4Number = 11;
constexpr int64_t kNumFormatNumbers = 12;

// Sets format, group and zero points; false for a number that is none.
bool set_format(int64_t number, PageShape& shape);

inline bool is_quantized(WeightFormat format) { return static_cast<int>(format) > static_cast<int>(WeightFormat::fp16); }

// Of any format, without what rounds a page of floats up.
int64_t page_bytes(const PageShape& shape);

// The best kernels at or below `isa`: those of AVX-512 also where there is more, since they alone keep every weight
// exact.
const ExpertKernelPair& quant_kernels(const PageShape& shape, Isa isa);

}  // namespace moesaic
