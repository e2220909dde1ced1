// Registers the CPU ops with torch, on its stable ABI: the only file that knows torch.
//
// TORCH_TARGET_VERSION (CMakeLists.txt) keeps it to what torch 2.11 has. Shapes and types are checked here; the
// kernels behind see pointers and sizes.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "require.h"
#include "rms_norm.h"
#include "stream_read.h"

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

namespace {

moesaic::Format format_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return moesaic::Format::fp32;
    case ScalarType::BFloat16:
      return moesaic::Format::bf16;
    case ScalarType::Half:
      return moesaic::Format::fp16;
    default:
      throw std::runtime_error("moesaic::rms_norm: x must be float32, bfloat16 or float16");
  }
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const moesaic::Format format = format_of(x);
  moesaic::require(x.dim() >= 1, "moesaic::rms_norm: x must have at least one axis");
  const int64_t hidden = x.size(x.dim() - 1);
  moesaic::require(weight.dim() == 1 && weight.size(0) == hidden, "moesaic::rms_norm: weight must be [", hidden, "]");
  moesaic::require(weight.scalar_type() == x.scalar_type(), "moesaic::rms_norm: weight must have x's dtype");

  const Tensor rows = torch::stable::contiguous(x);
  const Tensor scale = torch::stable::contiguous(weight);
  Tensor y = torch::stable::empty_like(rows);
  if (rows.numel() == 0) {
    return y;
  }
  const moesaic::RmsNormRows kernel = moesaic::rms_norm_rows(format);
  const char* in = static_cast<const char*>(rows.const_data_ptr());
  const void* w = scale.const_data_ptr();
  char* out = static_cast<char*>(y.mutable_data_ptr());
  const int64_t row_bytes = hidden * static_cast<int64_t>(rows.element_size());
  const int64_t grain = 1 + 32768 / hidden;  // a thread is worth waking for some tens of thousands of elements
  torch::stable::parallel_for(0, rows.numel() / hidden, grain, [&](int64_t begin, int64_t end) {
    kernel(in + begin * row_bytes, w, out + begin * row_bytes, end - begin, hidden, static_cast<float>(eps));
  });
  return y;
}

int64_t stream_read(const Tensor& bytes, int64_t num_threads) {
  moesaic::require(bytes.is_cpu() && bytes.is_contiguous(), "moesaic::stream_read: a contiguous host tensor is needed");
  moesaic::require(num_threads >= 1 && num_threads <= 1024, "moesaic::stream_read: num_threads must be 1 to 1024");
  const size_t num_bytes = static_cast<size_t>(bytes.numel()) * bytes.element_size();
  moesaic::require(num_bytes % sizeof(uint64_t) == 0, "moesaic::stream_read: the length must be a multiple of 8 bytes");
  moesaic::require(reinterpret_cast<uintptr_t>(bytes.const_data_ptr()) % sizeof(uint64_t) == 0,
                  "moesaic::stream_read: the data must be 8-byte aligned");
  return static_cast<int64_t>(moesaic::stream_read(static_cast<const uint64_t*>(bytes.const_data_ptr()),
                                                   num_bytes / sizeof(uint64_t), static_cast<int>(num_threads)));
}

}  // namespace

STABLE_TORCH_LIBRARY(moesaic, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("stream_read(Tensor bytes, int num_threads) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&rms_norm));
  m.impl("stream_read", TORCH_BOX(&stream_read));
}
