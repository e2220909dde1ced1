// Registers attention with torch, on its stable ABI (see ops.cpp): checks shapes and types, fills in AttentionCall.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "attention.h"
#include "isa.h"
#include "pool.h"
#include "require.h"

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

namespace {

using moesaic::AttentionCall;
using moesaic::KvFormat;

moesaic::Format query_format(const Tensor& query) {
  switch (query.scalar_type()) {
    case ScalarType::Float:
      return moesaic::Format::fp32;
    case ScalarType::BFloat16:
      return moesaic::Format::bf16;
    case ScalarType::Half:
      return moesaic::Format::fp16;
    default:
      throw std::runtime_error("moesaic attention: the query must be float32, bfloat16 or float16");
  }
}

KvFormat kv_format(const Tensor& rows) {
  switch (rows.scalar_type()) {
    case ScalarType::Float:
      return KvFormat::fp32;
    case ScalarType::BFloat16:
      return KvFormat::bf16;
    case ScalarType::Half:
      return KvFormat::fp16;
    case ScalarType::Char:
      return KvFormat::int8;
    case ScalarType::Byte:
      return KvFormat::int4;
    default:
      throw std::runtime_error("moesaic attention: the cache must be float32, bfloat16, float16, int8, or uint8 (int4)");
  }
}

moesaic::QueryRows query_rows(const Tensor& query) {
  moesaic::require(query.is_cpu() && query.dim() == 3, "moesaic attention: the query must be [tokens, heads, dim] on the host");
  moesaic::require(query.size(2) == 0 || query.stride(2) == 1, "moesaic attention: a query row must be contiguous");
  const int64_t bytes = static_cast<int64_t>(query.element_size());
  return {static_cast<const char*>(query.const_data_ptr()), query.stride(0) * bytes, query.stride(1) * bytes,
          query.size(2)};
}

// [blocks, block tokens, heads, ...] with contiguous rows.
moesaic::PagedRows paged_rows(const Tensor& rows, int64_t row_dim) {
  moesaic::require(rows.is_cpu(), "moesaic attention: the cache must be on the host");
  moesaic::require(row_dim < 0 || rows.stride(row_dim) == 1, "moesaic attention: a row of the cache must be contiguous");
  const int64_t bytes = static_cast<int64_t>(rows.element_size());
  return {static_cast<const char*>(rows.const_data_ptr()), rows.stride(0) * bytes, rows.stride(1) * bytes,
          rows.stride(2) * bytes};
}

void check_sequences(const AttentionCall& call, int64_t num_tokens, const Tensor& block_table,
                     const std::vector<int64_t>& starts, const std::vector<int64_t>& contexts) {
  moesaic::require(starts.size() == contexts.size() + 1 && starts.front() == 0 && starts.back() == num_tokens,
                  "moesaic attention: query_starts must run from 0 to the number of query tokens");
  moesaic::require(block_table.is_cpu() && block_table.is_contiguous() && block_table.dim() == 2 &&
                      block_table.scalar_type() == ScalarType::Long && block_table.size(0) == call.num_sequences,
                  "moesaic attention: block_table must be int64 [sequences, width], contiguous, on the host");
  for (int64_t r = 0; r < call.num_sequences; ++r) {
    const int64_t queries = starts[r + 1] - starts[r], context = contexts[r];
    moesaic::require(queries >= 0 && context >= queries, "moesaic attention: sequence ", r, " has ", queries,
                    " queries and a context of ", context);
    const int64_t num_blocks = (context + call.block_tokens - 1) / call.block_tokens;
    moesaic::require(queries == 0 || num_blocks <= call.table_width, "moesaic attention: sequence ", r,
                    " is longer than its block table");
    const int64_t seen = context - queries + 1;  // of the first query
    const int64_t first = call.window >= seen ? 0 : (seen - call.window) / call.block_tokens;
    for (int64_t b = first; queries > 0 && b < num_blocks; ++b) {
      const int64_t block = call.block_table[r * call.table_width + b];
      moesaic::require(block >= 0 && block < call.num_blocks, "moesaic attention: sequence ", r, " names block ", block);
    }
  }
}

Tensor run(AttentionCall& call, const Tensor& query, const std::vector<int64_t>& starts,
           const std::vector<int64_t>& contexts, const Tensor& block_table, int64_t num_threads, int64_t max_isa) {
  call.num_heads = query.size(1);
  call.query_format = query_format(query);
  call.query_starts = starts.data();
  call.context_lens = contexts.data();
  call.num_sequences = static_cast<int64_t>(contexts.size());
  call.block_table = static_cast<const int64_t*>(block_table.const_data_ptr());
  call.table_width = block_table.size(1);
  moesaic::require(call.num_kv_heads > 0 && call.num_heads % call.num_kv_heads == 0,
                  "moesaic attention: query heads must be a multiple of kv heads");
  moesaic::require(call.key_dim > 0 && call.value_dim > 0 && call.block_tokens > 0, "moesaic attention: an axis is empty");
  moesaic::require(num_threads >= 0, "moesaic attention: num_threads must not be negative");
  moesaic::require(max_isa >= 0 && max_isa < moesaic::kNumIsas, "moesaic attention: max_isa must be 0 to 4");
  check_sequences(call, query.size(0), block_table, starts, contexts);
  Tensor out = torch::stable::new_empty(query, {query.size(0), call.num_heads, call.value_dim});
  call.out = out.mutable_data_ptr();
  const moesaic::Isa isa = moesaic::best_isa_up_to(static_cast<moesaic::Isa>(max_isa));
  moesaic::Pool& pool = moesaic::process_pool();
  moesaic::attention(call, moesaic::attention_span(call.kv_format, isa), pool,
                     static_cast<int>(std::min<int64_t>(num_threads, pool.size())));
  return out;
}

void take_scales(const std::optional<Tensor>& scales, const Tensor& rows, moesaic::PagedRows& into) {
  const bool is_quantized = rows.scalar_type() == ScalarType::Char || rows.scalar_type() == ScalarType::Byte;
  moesaic::require(is_quantized == scales.has_value(), "moesaic attention: scales belong to int8 and int4 caches, and to them only");
  if (!scales.has_value()) {
    return;
  }
  moesaic::require(scales->scalar_type() == ScalarType::Float && scales->dim() == 3 && scales->size(0) == rows.size(0) &&
                      scales->size(1) == rows.size(1) && scales->size(2) == rows.size(2),
                  "moesaic attention: scales must be float32 [blocks, block tokens, kv heads]");
  into = paged_rows(*scales, -1);
}

Tensor paged_attention(const Tensor& query, const Tensor& keys, const Tensor& values,
                       const std::optional<Tensor>& key_scales, const std::optional<Tensor>& value_scales,
                       std::vector<int64_t> query_starts, std::vector<int64_t> context_lens, const Tensor& block_table,
                       double scale, std::optional<int64_t> sliding_window, const std::optional<Tensor>& sinks,
                       int64_t num_threads, int64_t max_isa) {
  AttentionCall call{};
  call.kv_format = kv_format(keys);
  call.query = query_rows(query);
  const int64_t dim = query.size(2);
  const int64_t row = call.kv_format == KvFormat::int4 ? (dim + 1) / 2 : dim;
  for (const Tensor* rows : {&keys, &values}) {
    moesaic::require(rows->dim() == 4 && rows->scalar_type() == keys.scalar_type() && rows->size(3) == row,
                    "moesaic attention: keys and values must be [blocks, block tokens, kv heads, ", row, "] of one dtype");
    for (int axis = 0; axis < 3; ++axis) {
      moesaic::require(rows->size(axis) == keys.size(axis), "moesaic attention: keys and values must be of one shape");
    }
  }
  call.keys = paged_rows(keys, 3);
  call.values = paged_rows(values, 3);
  take_scales(key_scales, keys, call.key_scales);
  take_scales(value_scales, values, call.value_scales);
  call.num_blocks = keys.size(0);
  call.block_tokens = keys.size(1);
  call.num_kv_heads = keys.size(2);
  call.key_dim = call.value_dim = dim;
  call.scale = static_cast<float>(scale);
  moesaic::require(sliding_window.value_or(1) >= 1, "moesaic attention: a sliding window has at least one token");
  call.window = sliding_window.value_or(std::numeric_limits<int64_t>::max());
  if (sinks.has_value()) {
    moesaic::require(sinks->is_cpu() && sinks->is_contiguous() && sinks->scalar_type() == ScalarType::Float &&
                        sinks->dim() == 1 && sinks->size(0) == query.size(1),
                    "moesaic attention: sinks must be float32 [heads] on the host");
    call.sinks = static_cast<const float*>(sinks->const_data_ptr());
  }
  return run(call, query, query_starts, context_lens, block_table, num_threads, max_isa);
}

Tensor latent_attention(const Tensor& query_latent, const Tensor& query_rope, const Tensor& latent,
                        std::vector<int64_t> query_starts, std::vector<int64_t> context_lens, const Tensor& block_table,
                        double scale, int64_t num_threads, int64_t max_isa) {
  AttentionCall call{};
  call.kv_format = kv_format(latent);
  moesaic::require(call.kv_format != KvFormat::int8 && call.kv_format != KvFormat::int4,
                  "moesaic attention: a latent cache must be float32, bfloat16 or float16");
  call.query = query_rows(query_latent);
  call.query_rest = query_rows(query_rope);
  moesaic::require(query_rope.scalar_type() == query_latent.scalar_type() && query_rope.size(0) == query_latent.size(0) &&
                      query_rope.size(1) == query_latent.size(1),
                  "moesaic attention: both parts of the query must have the same tokens, heads and dtype");
  call.value_dim = query_latent.size(2);
  call.key_dim = call.value_dim + query_rope.size(2);
  moesaic::require(latent.dim() == 3 && latent.size(2) == call.key_dim,
                  "moesaic attention: the latent cache must be [blocks, block tokens, ", call.key_dim, "]");
  call.keys = paged_rows(latent, 2);
  call.keys.head_stride = 0;
  call.values = call.keys;
  call.num_blocks = latent.size(0);
  call.block_tokens = latent.size(1);
  call.num_kv_heads = 1;
  call.scale = static_cast<float>(scale);
  call.window = std::numeric_limits<int64_t>::max();
  return run(call, query_latent, query_starts, context_lens, block_table, num_threads, max_isa);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def(
      "paged_attention(Tensor query, Tensor keys, Tensor values, Tensor? key_scales, Tensor? value_scales, "
      "int[] query_starts, int[] context_lens, Tensor block_table, float scale, int? sliding_window=None, "
      "Tensor? sinks=None, int num_threads=0, int max_isa=4) -> Tensor");
  m.def(
      "latent_attention(Tensor query_latent, Tensor query_rope, Tensor latent, int[] query_starts, "
      "int[] context_lens, Tensor block_table, float scale, int num_threads=0, int max_isa=4) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("paged_attention", TORCH_BOX(&paged_attention));
  m.impl("latent_attention", TORCH_BOX(&latent_attention));
}
