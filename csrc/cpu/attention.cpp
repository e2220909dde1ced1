// Cuts a call of attention into tasks, runs them on the pool, and combines the spans of a sequence in their order.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "floats.h"
#include "pool.h"

namespace moesaic {
namespace {

constexpr int64_t kTileRows = 64;                   // query rows of a task, whole queries: what a cache holds beside the keys
constexpr int64_t kPartialFloats = 4 << 20;         // of one sequence's spans, all heads
constexpr int64_t kTasksPerThread = 4;
constexpr double kAloneOperations = 1 << 20;        // less than waking threads costs

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Some queries of one sequence, and where its spans' results lie.
struct Tile {
  int64_t sequence;
  int64_t query_begin, query_end;  // of the step's tokens
  int64_t begin, end;              // tokens of the sequence that any of its queries sees
  int64_t span_tokens;             // a span ends at every multiple of it
  int64_t num_spans;
  int64_t first_task;   // tasks of a tile: span by span, in it some heads after others
  int64_t first_float;  // in the partial results: head by head, in it span by span
};

struct Plan {
  std::vector<Tile> tiles;
  std::vector<const Tile*> cut;  // those of several spans
  int64_t heads_per_task = 1;    // which changes no bit
  int64_t num_tasks = 0;
  int64_t num_spans = 0;
  int64_t num_floats = 0;
  int64_t max_rows = 0;
  double operations = 0;
};

// Floats that begin at a cache line.
class Floats {
 public:
  void resize(int64_t count) {
    held_.resize(static_cast<size_t>(count) + 16);
    begin_ = held_.data() + (64 - reinterpret_cast<uintptr_t>(held_.data()) % 64) % 64 / sizeof(float);
  }
  float* data() { return begin_; }

 private:
  std::vector<float> held_;
  float* begin_ = nullptr;
};

struct Run {
  const AttentionCall& call;
  const SpanKernel& kernel;
  Plan plan;
  int64_t group_heads;  // query heads of a kv head
  int64_t key_stride, mixed_stride;
  Floats partials;

  int64_t rows(const Tile& tile) const { return (tile.query_end - tile.query_begin) * group_heads; }
  int64_t floats_of(int64_t rows) const { return round_up(rows * (mixed_stride + 2), 16); }
};

void plan_sequence(const Run& run, int64_t sequence, Plan& plan) {
  const AttentionCall& call = run.call;
  const int64_t start = call.query_starts[sequence], stop = call.query_starts[sequence + 1];
  if (start == stop) {
    return;
  }
  const int64_t past = call.context_lens[sequence] - (stop - start);
  const int64_t tile_queries = std::max<int64_t>(1, kTileRows / run.group_heads);
  const int64_t query_floats = call.num_heads * (run.mixed_stride + 2);
  const int64_t max_spans = std::max<int64_t>(1, kPartialFloats / ((stop - start) * query_floats));
  for (int64_t begin = start; begin < stop; begin += tile_queries) {
    const int64_t end = std::min(stop, begin + tile_queries);
    const int64_t position = past + begin - start;
    Tile tile{sequence, begin, end, 0, past + end - start, 0, 0, 0, plan.num_floats};
    tile.begin = call.window > position ? 0 : position - call.window + 1;
    const int64_t num_chunks = (tile.end - 1) / kChunkTokens - tile.begin / kChunkTokens + 1;
    tile.span_tokens = (num_chunks + max_spans - 1) / max_spans * kChunkTokens;
    tile.num_spans = (tile.end - 1) / tile.span_tokens - tile.begin / tile.span_tokens + 1;
    const int64_t rows = run.rows(tile);
    plan.num_spans += tile.num_spans;
    plan.num_floats += tile.num_spans > 1 ? tile.num_spans * call.num_kv_heads * run.floats_of(rows) : 0;
    plan.max_rows = std::max(plan.max_rows, rows);
    plan.operations += static_cast<double>((tile.end - tile.begin) * (call.key_dim + call.value_dim)) *
                       static_cast<double>(rows * call.num_kv_heads);
    plan.tiles.push_back(tile);
  }
}

int64_t element_bytes(Format format) { return format == Format::fp32 ? 4 : 2; }

// Heads that go together read long stretches of memory; but there must be tasks for every thread.
void plan_tasks(int64_t num_kv_heads, int64_t num_threads, Plan& plan) {
  const int64_t by_rows = std::max<int64_t>(1, kTileRows / std::max<int64_t>(1, plan.max_rows));
  const int64_t groups = kTasksPerThread * num_threads / std::max<int64_t>(1, plan.num_spans) + 1;
  plan.heads_per_task = std::max<int64_t>(1, std::min({num_kv_heads, by_rows, num_kv_heads / groups}));
  const int64_t tasks_per_span = (num_kv_heads + plan.heads_per_task - 1) / plan.heads_per_task;
  for (Tile& tile : plan.tiles) {
    tile.first_task = plan.num_tasks;
    plan.num_tasks += tile.num_spans * tasks_per_span;
    if (tile.num_spans > 1) {
      plan.cut.push_back(&tile);
    }
  }
}

template <class F>
void read_row(const char* row, int64_t dim, float* out) {
  for (int64_t i = 0; i < dim; ++i) {
    typename F::Bits bits;
    std::memcpy(&bits, row + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    out[i] = F::load(bits);
  }
}

template <class F>
void write_row(const float* in, int64_t dim, char* row) {
  for (int64_t i = 0; i < dim; ++i) {
    const typename F::Bits bits = F::store(in[i]);
    std::memcpy(row + i * static_cast<int64_t>(sizeof bits), &bits, sizeof bits);
  }
}

void read_row(Format format, const char* row, int64_t dim, float* out) {
  format == Format::fp32 ? read_row<Fp32Bits>(row, dim, out)
  : format == Format::bf16 ? read_row<Bf16Bits>(row, dim, out)
                           : read_row<Fp16Bits>(row, dim, out);
}

void write_row(Format format, const float* in, int64_t dim, char* row) {
  format == Format::fp32 ? write_row<Fp32Bits>(in, dim, row)
  : format == Format::bf16 ? write_row<Bf16Bits>(in, dim, row)
                           : write_row<Fp16Bits>(in, dim, row);
}

// A row of whole groups in the kernel's order, and back.
void reorder(const SpanKernel& kernel, const float* plain, int64_t stride, float* ordered) {
  if (!kernel.is_split) {
    std::copy(plain, plain + stride, ordered);
    return;
  }
  const int64_t half = kernel.group / 2;
  for (int64_t at = 0; at < stride; at += kernel.group) {
    for (int64_t i = 0; i < half; ++i) {
      ordered[at + i] = plain[at + 2 * i];
      ordered[at + half + i] = plain[at + 2 * i + 1];
    }
  }
}

void restore(const SpanKernel& kernel, const float* ordered, int64_t stride, float* plain) {
  if (!kernel.is_split) {
    std::copy(ordered, ordered + stride, plain);
    return;
  }
  const int64_t half = kernel.group / 2;
  for (int64_t at = 0; at < stride; at += kernel.group) {
    for (int64_t i = 0; i < half; ++i) {
      plain[at + 2 * i] = ordered[at + i];
      plain[at + 2 * i + 1] = ordered[at + half + i];
    }
  }
}

// The tile's query rows of one kv head, query by query and in it head by head. `plain`, a row, is zero behind key_dim.
void pack_queries(const Run& run, const Tile& tile, int64_t kv_head, float* plain, float* packed) {
  const AttentionCall& call = run.call;
  for (int64_t token = tile.query_begin; token < tile.query_end; ++token) {
    for (int64_t shared = 0; shared < run.group_heads; ++shared, packed += run.key_stride) {
      float* out = plain;
      for (const QueryRows* part : {&call.query, &call.query_rest}) {
        const int64_t head = kv_head * run.group_heads + shared;
        read_row(call.query_format, part->data + token * part->token_stride + head * part->head_stride, part->dim, out);
        out += part->dim;
      }
      reorder(run.kernel, plain, run.key_stride, packed);
    }
  }
}

// Results of `rows` rows that lie end to end in `floats`.
SpanResult result_at(float* floats, int64_t rows, int64_t mixed_stride, int64_t head_stride = 0) {
  return {floats + rows * mixed_stride, floats + rows * (mixed_stride + 1), floats, head_stride};
}

// A thread's memory: the packed queries, single rows, a result that needs no combining, the kernel's scratch.
struct Workspace {
  Floats queries, plain, mixed, restored, result, scratch;
  std::vector<int64_t> first, stop;

  void fit(const Run& run) {
    if (!first.empty()) {
      return;
    }
    const int64_t heads = run.plan.heads_per_task, rows = run.plan.max_rows;
    const int64_t widest = std::max(run.key_stride, run.mixed_stride);
    queries.resize(heads * rows * run.key_stride);
    plain.resize(run.key_stride);
    mixed.resize(run.mixed_stride);
    restored.resize(run.mixed_stride);
    result.resize(heads * run.floats_of(rows));
    scratch.resize(heads * rows * kScoreStride + std::max(kWideFloats, 4 * widest));
    first.resize(static_cast<size_t>(rows));
    stop.resize(static_cast<size_t>(rows));
  }
};

// Writes a tile's outputs for one kv head from its spans' results, which lie end to end from `first` on.
void finish(const Run& run, const Tile& tile, int64_t kv_head, float* first, Workspace& work) {
  float* mixed = work.mixed.data();
  float* plain = work.restored.data();
  const AttentionCall& call = run.call;
  const int64_t rows = run.rows(tile), stride = run.floats_of(rows);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = kv_head * run.group_heads + row % run.group_heads;
    const float sink = call.sinks == nullptr ? -std::numeric_limits<float>::infinity()
                                             : call.sinks[head] * 1.44269504088896341f;
    float largest = sink;
    for (int64_t span = 0; span < tile.num_spans; ++span) {
      largest = std::max(largest, result_at(first + span * stride, rows, run.mixed_stride).largest[row]);
    }
    float sum = call.sinks == nullptr ? 0.0f : std::exp2(sink - largest);
    std::fill(mixed, mixed + run.mixed_stride, 0.0f);
    for (int64_t span = 0; span < tile.num_spans; ++span) {
      const SpanResult part = result_at(first + span * stride, rows, run.mixed_stride);
      if (part.sum[row] == 0.0f) {
        continue;  // the row sees nothing of this span
      }
      const float weight = std::exp2(part.largest[row] - largest);
      sum += weight * part.sum[row];
      const float* from = part.mixed + row * run.mixed_stride;
      for (int64_t i = 0; i < run.mixed_stride; ++i) {
        mixed[i] += weight * from[i];
      }
    }
    const float share = 1.0f / sum;
    for (int64_t i = 0; i < run.mixed_stride; ++i) {
      mixed[i] *= share;
    }
    restore(run.kernel, mixed, run.mixed_stride, plain);
    const int64_t token = tile.query_begin + row / run.group_heads;
    char* out = static_cast<char*>(call.out) +
                (token * call.num_heads + head) * call.value_dim * element_bytes(call.query_format);
    write_row(call.query_format, plain, call.value_dim, out);
  }
}

// Task `index` as far as its place goes: tile, span and heads.
struct Place {
  const Tile* tile;
  int64_t span;
  int64_t head_begin, head_end;
  TokenRange tokens;
};

Place place_of(const Run& run, int64_t index) {
  const auto& tiles = run.plan.tiles;
  const Tile& tile = *(std::upper_bound(tiles.begin(), tiles.end(), index,
                                        [](int64_t task, const Tile& t) { return task < t.first_task; }) - 1);
  const int64_t heads = run.plan.heads_per_task, num_kv_heads = run.call.num_kv_heads;
  const int64_t tasks_per_span = (num_kv_heads + heads - 1) / heads;
  const int64_t span = (index - tile.first_task) / tasks_per_span;
  const int64_t head = (index - tile.first_task) % tasks_per_span * heads;
  const int64_t number = tile.begin / tile.span_tokens + span;
  return {&tile, span, head, std::min(head + heads, num_kv_heads),
          {run.call.block_table + tile.sequence * run.call.table_width, std::max(tile.begin, number * tile.span_tokens),
           std::min(tile.end, (number + 1) * tile.span_tokens)}};
}

void run_task(Run& run, int64_t index, Workspace& work) {
  const AttentionCall& call = run.call;
  const Place place = place_of(run, index);
  const Tile& tile = *place.tile;
  const int64_t rows = run.rows(tile);
  work.fit(run);
  for (int64_t head = place.head_begin; head < place.head_end; ++head) {
    pack_queries(run, tile, head, work.plain.data(),
                 work.queries.data() + (head - place.head_begin) * rows * run.key_stride);
  }
  const int64_t past = call.context_lens[tile.sequence] - call.query_starts[tile.sequence + 1];
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = past + tile.query_begin + row / run.group_heads;
    work.first[static_cast<size_t>(row)] = call.window > position ? 0 : position - call.window + 1;
    work.stop[static_cast<size_t>(row)] = position + 1;
  }
  const TokenRange next = index + 1 < run.plan.num_tasks ? place_of(run, index + 1).tokens : TokenRange{};
  const SpanTask task{work.queries.data(), rows, work.first.data(), work.stop.data(), place.head_begin,
                      place.head_end, place.tokens, next, work.scratch.data()};
  const int64_t floats = run.floats_of(rows);
  if (tile.num_spans > 1) {
    float* result = run.partials.data() + tile.first_float + (place.head_begin * tile.num_spans + place.span) * floats;
    run.kernel.run(call, task, result_at(result, rows, run.mixed_stride, tile.num_spans * floats));
    return;
  }
  run.kernel.run(call, task, result_at(work.result.data(), rows, run.mixed_stride, floats));
  for (int64_t head = place.head_begin; head < place.head_end; ++head) {
    finish(run, tile, head, work.result.data() + (head - place.head_begin) * floats, work);
  }
}

// Combines the spans of one head of a tile that has several.
void combine(Run& run, int64_t index, Workspace& work) {
  const int64_t num_kv_heads = run.call.num_kv_heads;
  const Tile& tile = *run.plan.cut[static_cast<size_t>(index / num_kv_heads)];
  const int64_t head = index % num_kv_heads;
  work.fit(run);
  finish(run, tile, head,
         run.partials.data() + tile.first_float + head * tile.num_spans * run.floats_of(run.rows(tile)), work);
}

}  // namespace

SpanKernel attention_span(KvFormat format, Isa isa) {
#ifdef MOESAIC_X86
  if (isa >= Isa::avx512) {
    return attention_span_avx512(format);
  }
  if (isa >= Isa::avx2) {
    return attention_span_avx2(format);
  }
#else
  static_cast<void>(isa);
#endif
  return attention_span_portable(format);
}

void attention(const AttentionCall& call, const SpanKernel& kernel, Pool& pool, int num_threads) {
  Run run{call, kernel, {}, call.num_heads / call.num_kv_heads, round_up(call.key_dim, kernel.group),
          round_up(call.value_dim, kernel.group), {}};
  for (int64_t sequence = 0; sequence < call.num_sequences; ++sequence) {
    plan_sequence(run, sequence, run.plan);
  }
  const int size = num_threads == 0 ? pool.size() : std::min(num_threads, pool.size());
  plan_tasks(call.num_kv_heads, size, run.plan);
  run.partials.resize(run.plan.num_floats);
  const int64_t num_combines = static_cast<int64_t>(run.plan.cut.size()) * call.num_kv_heads;
  std::vector<Workspace> work(static_cast<size_t>(size));
  const auto task = [&](int64_t index, int thread) { run_task(run, index, work[static_cast<size_t>(thread)]); };
  const auto rest = [&](int64_t index, int thread) { combine(run, index, work[static_cast<size_t>(thread)]); };
  if (run.plan.operations >= kAloneOperations) {
    pool.wait(pool.submit({Phase{run.plan.num_tasks, task}, Phase{num_combines, rest}}, size));
    return;
  }
  for (int64_t index = 0; index < run.plan.num_tasks; ++index) {
    task(index, 0);
  }
  for (int64_t index = 0; index < num_combines; ++index) {
    rest(index, 0);
  }
}

}  // namespace moesaic
