// Attention over a paged key/value cache: what a call is, and the part of it that each instruction set implements.
//
// Work is cut by shape alone, never by the number of threads, and parts are combined in a fixed order: the same bits
// whatever runs it. A sequence's context falls into chunks of kChunkTokens at fixed positions; a span is one chunk or
// several, a tile is some of a sequence's queries, and a task is (tile, span, some kv heads). All query heads of a kv
// head share one pass over its keys and values. Inside a task scores, weights and sums are float32.
#pragma once

#include <cstdint>

#include "format.h"
#include "isa.h"

namespace moesaic {

class Pool;

// int8: one code an element. int4: two an element pair, the even element in the low nibble, code + 8; an odd row ends
// in half a byte. A token's row of one kv head is code * scale, one float32 scale.
enum class KvFormat { fp32, bf16, fp16, int8, int4 };

constexpr int64_t kChunkTokens = 256;

// Rows [block, token, head] somewhere in memory; strides in bytes.
struct PagedRows {
  const char* data = nullptr;
  int64_t block_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// Rows [token, head] of `dim` elements; strides in bytes.
struct QueryRows {
  const char* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t dim = 0;
};

struct AttentionCall {
  KvFormat kv_format;
  PagedRows keys, values;
  PagedRows key_scales, value_scales;  // without data where the format has none
  int64_t num_blocks, block_tokens;
  int64_t key_dim, value_dim;
  int64_t num_heads, num_kv_heads;

  Format query_format;
  QueryRows query, query_rest;  // end to end they are key_dim wide; query_rest may be empty
  const int64_t* query_starts;  // [sequences + 1]
  const int64_t* context_lens;  // [sequences]
  int64_t num_sequences;
  const int64_t* block_table;  // [sequences, width]
  int64_t table_width;

  float scale;
  int64_t window;      // a query sees its last `window` tokens; INT64_MAX: all
  const float* sinks;  // [heads], or null
  void* out;           // [tokens, heads, value_dim] of query_format
};

// Tokens [begin, end) of a sequence, whose blocks `table` names.
struct TokenRange {
  const int64_t* table = nullptr;
  int64_t begin = 0, end = 0;
};

// One task: some kv heads of a tile over one span. Row m of every head sees tokens [first[m], stop[m]) of the sequence,
// those of them that lie in the span.
struct SpanTask {
  const float* query;  // [heads, rows, key_dim rounded up to the kernel's group], zero behind key_dim, in its order
  int64_t rows;        // of one head
  const int64_t* first;
  const int64_t* stop;
  int64_t head_begin, head_end;
  TokenRange tokens;  // only the first and the last chunk may be cut
  TokenRange next;    // what is likely read after it
  float* scratch;     // heads * rows * kScoreStride + max(kWideFloats, 4 * widest dim rounded up to the group) floats
};

// What a task leaves, head by head, `head_stride` floats apart: per row the largest score (in units of log2), the sum of
// exp2(score - largest), and the values' sum under those weights, [rows, value_dim rounded up], in the kernel's order.
struct SpanResult {
  float* largest;
  float* sum;
  float* mixed;
  int64_t head_stride;
};

struct SpanKernel {
  void (*run)(const AttentionCall&, const SpanTask&, const SpanResult&);
  int64_t group;  // elements that are handled together
  bool is_split;  // order inside a group: even elements first, then the odd ones
};

constexpr int64_t kScoreStride = kChunkTokens + 32;  // vectors may reach past a chunk's end
constexpr int64_t kWideFloats = 8192;

// The kernel of an instruction set: the best one at `isa` or below it.
SpanKernel attention_span(KvFormat format, Isa isa);

// Computes the call on the pool's first `num_threads` threads (0: all), or on the caller's where there is little to do.
void attention(const AttentionCall& call, const SpanKernel& kernel, Pool& pool, int num_threads);

SpanKernel attention_span_portable(KvFormat format);
SpanKernel attention_span_avx2(KvFormat format);
SpanKernel attention_span_avx512(KvFormat format);

}  // namespace moesaic
