// Registers grouped experts, waiting for them, and the pool's steps with torch, on its stable ABI.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <memory>
#include <string>

#include "experts_plan.h"
#include "isa.h"
#include "pool.h"
#include "quant.h"
#include "require.h"

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

namespace {

moesaic::WeightFormat float_format(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return moesaic::WeightFormat::fp32;
    case ScalarType::BFloat16:
      return moesaic::WeightFormat::bf16;
    case ScalarType::Half:
      return moesaic::WeightFormat::fp16;
    default:
      throw std::runtime_error("moesaic::grouped_experts: x must be float32, bfloat16 or float16");
  }
}

void check(bool condition, const char* what) { moesaic::require(condition, "moesaic::grouped_experts: ", what); }

void check_matrix(const Tensor& tensor, ScalarType type, int64_t dim, const char* what) {
  check(tensor.is_cpu() && tensor.is_contiguous() && tensor.dim() == dim && tensor.scalar_type() == type, what);
}

void check_rows(const moesaic::ExpertCall& call, int64_t num_tokens, int64_t num_rows, int64_t num_slots) {
  int64_t before = 0;
  for (int64_t e = 0; e < call.num_experts; ++e) {
    const int64_t begin = call.spans[2 * e], end = call.spans[2 * e + 1];
    check(before <= begin && begin <= end && end <= num_rows, "spans must ascend within the rows");
    before = end;
    for (int64_t i = begin; i < end; ++i) {
      check(call.token[i] >= 0 && call.token[i] < num_tokens, "a token is not a row of x");
    }
  }
  for (int64_t i = 0; i < call.num_experts * call.num_pages; ++i) {
    check(call.slots[i] >= 0 && call.slots[i] < num_slots, "a slot is not in the slab");
  }
}

// shape: page units, format id, activation id, highest instruction set (-1: any), threads (0: all).
int64_t grouped_experts(const Tensor& x, const Tensor& token, const Tensor& weight, const Tensor& spans,
                        const Tensor& slots, const Tensor& slab, const Tensor& out, int64_t page_units, int64_t format,
                        int64_t activation, int64_t max_isa, int64_t num_threads) {
  check(x.is_cpu() && x.is_contiguous() && x.dim() == 2, "x must be a contiguous host matrix");
  check_matrix(token, ScalarType::Long, 1, "token must be int64 [rows] on the host, contiguous");
  check_matrix(weight, ScalarType::Float, 1, "weight must be float32 [rows] on the host, contiguous");
  check_matrix(spans, ScalarType::Long, 2, "spans must be int64 [experts, 2] on the host, contiguous");
  check_matrix(slots, ScalarType::Long, 2, "slots must be int64 [experts, pages] on the host, contiguous");
  check(slab.is_cpu() && slab.dim() == 2 && slab.scalar_type() == ScalarType::Byte && slab.stride(1) == 1,
        "slab must be uint8 [slots, bytes] on the host");
  check_matrix(out, ScalarType::Float, 2, "out must be float32 [tokens, hidden] on the host, contiguous");
  check(out.size(0) == x.size(0) && out.size(1) == x.size(1), "out must be of x's shape");
  check(token.size(0) == weight.size(0), "token and weight must be of one length");
  check(spans.size(1) == 2 && spans.size(0) == slots.size(0), "spans and slots must have a row per expert");
  moesaic::PageShape shape{x.size(1), page_units, moesaic::WeightFormat::fp32, moesaic::Activation::silu};
  check(moesaic::set_format(format, shape), "unknown format");
  check(activation >= 0 && activation <= 2, "unknown activation");
  check(max_isa >= -1 && max_isa < moesaic::kNumIsas, "unknown instruction set");
  shape.activation = static_cast<moesaic::Activation>(activation);
  check(page_units > 0 && moesaic::page_bytes(shape) <= slab.size(1), "a page does not fit a slot");
  check(slab.stride(0) % 4 == 0, "slots must be aligned to whole elements");

  moesaic::Pool& pool = moesaic::process_pool();
  moesaic::require(num_threads >= 0 && num_threads <= pool.size(), "moesaic::grouped_experts: num_threads is ",
                  num_threads, ", the pool has ", pool.size());
  const int threads = num_threads == 0 ? pool.size() : static_cast<int>(num_threads);
  moesaic::ExpertCall call{};
  call.shape = shape;
  call.x = {x.const_data_ptr(), float_format(x)};
  call.token = static_cast<const int64_t*>(token.const_data_ptr());
  call.weight = static_cast<const float*>(weight.const_data_ptr());
  call.spans = static_cast<const int64_t*>(spans.const_data_ptr());
  call.slots = static_cast<const int64_t*>(slots.const_data_ptr());
  call.num_experts = spans.size(0);
  call.num_pages = slots.size(1);
  call.slab = static_cast<const uint8_t*>(slab.const_data_ptr());
  call.slot_bytes = slab.stride(0);
  call.out = static_cast<float*>(out.mutable_data_ptr());
  check_rows(call, x.size(0), token.size(0), slab.size(0));

  const moesaic::Isa best = moesaic::best_isa();
  const moesaic::Isa isa = max_isa < 0 ? best : moesaic::best_isa_up_to(static_cast<moesaic::Isa>(max_isa));
  auto kept = std::make_shared<std::array<Tensor, 5>>(std::array<Tensor, 5>{x, token, weight, slab, out});
  return pool.submit(moesaic::plan_experts(call, isa, threads), threads, std::move(kept));
}

bool work_done(int64_t ticket) { return moesaic::process_pool().done(ticket); }

// False after `timeout_s` seconds (negative: waits for ever). Raises what the work ended with.
bool work_wait(int64_t ticket, double timeout_s) { return moesaic::process_pool().wait(ticket, timeout_s); }

void step_begin() { moesaic::process_pool().step_begin(); }

void step_end() { moesaic::process_pool().step_end(); }

int64_t pool_size() { return moesaic::process_pool().size(); }

int64_t best_isa() { return static_cast<int64_t>(moesaic::best_isa()); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def(
      "grouped_experts(Tensor x, Tensor token, Tensor weight, Tensor spans, Tensor slots, Tensor slab, Tensor(a!) out, "
      "int page_units, int format, int activation, int max_isa, int num_threads) -> int");
  m.def("work_done(int ticket) -> bool");
  m.def("work_wait(int ticket, float timeout_s) -> bool");
  m.def("step_begin() -> ()");
  m.def("step_end() -> ()");
  m.def("pool_size() -> int");
  m.def("best_isa() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(moesaic, CPU, m) { m.impl("grouped_experts", TORCH_BOX(&grouped_experts)); }

STABLE_TORCH_LIBRARY_IMPL(moesaic, CompositeExplicitAutograd, m) {
  m.impl("work_done", TORCH_BOX(&work_done));
  m.impl("work_wait", TORCH_BOX(&work_wait));
  m.impl("step_begin", TORCH_BOX(&step_begin));
  m.impl("step_end", TORCH_BOX(&step_end));
  m.impl("pool_size", TORCH_BOX(&pool_size));
  m.impl("best_isa", TORCH_BOX(&best_isa));
}
