// RMSNorm over rows: y = round(x * 1/sqrt(mean(x^2) + eps)) * weight, the rounding being to x's format.
#pragma once

#include <cstdint>

#include "format.h"

namespace moesaic {

// x, y: `rows` rows of `hidden` elements, end to end; weight: `hidden` elements; all of one format. y may be x.
using RmsNormRows = void (*)(const void* x, const void* weight, void* y, int64_t rows, int64_t hidden, float eps);

// The fastest implementation that this processor runs.
RmsNormRows rms_norm_rows(Format format);

// Null where the format has no AVX2 version.
RmsNormRows rms_norm_rows_avx2(Format format);

}  // namespace moesaic
