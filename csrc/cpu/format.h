// The float formats that activations come in.
#pragma once

namespace moesaic {

enum class Format { fp32, bf16, fp16 };

}  // namespace moesaic
