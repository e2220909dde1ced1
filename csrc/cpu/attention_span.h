// One task of attention, for any instruction set: a file that defines `Simd` and the formats `Fp32`, `Bf16`, `Fp16`,
// `Int8`, `Int4` in an unnamed namespace includes this one (everything here then has internal linkage).
//
// Simd: V, kLanes, kRows (query rows whose sums fit the registers), zero, load, store, set, add, mul, fma, max, exp2,
// sum_of, max_of, store_sums4. A format: kSplit, row_bytes(n) and load(row, i, a, b), which gives the 2 * kLanes
// elements from i on as two vectors, a and b, and load_tail(row, i, n, a, b), which reads n of them and gives zeros
// behind.
//
// Two passes per chunk: all scores, then, with the chunk's largest known, all weights and the sum of values.
#include "attention.h"
#include "attention_feed.h"

namespace moesaic {
namespace {

using V = Simd::V;
constexpr int64_t kGroup = 2 * Simd::kLanes;
constexpr int kRows = Simd::kRows;
constexpr float kInfinity = __builtin_inff();

inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Rows of a chunk for the task's first head: keys, then values, then the keys that are likely read after it: the order
// in which memory is to bring them.
struct Chunk {
  static constexpr int64_t kNext = 64;
  int64_t count;
  int64_t num_rows;  // that follow each other in `rows`
  const char* rows[2 * kChunkTokens + kNext];
  const char* key_scale_rows[kChunkTokens];
  const char* value_scale_rows[kChunkTokens];
  float key_scales[kScoreStride];  // of one head at a time
  float value_scales[kScoreStride];
  const char* const* keys() const { return rows; }
  const char* const* values() const { return rows + count; }
};

// Scores of kR query rows and four keys at a time; scores[m * kScoreStride + t], up to three past `count`.
template <class F, int kR>
void score_rows(const float* query, int64_t stride, const char* const* keys, int64_t offset, int64_t count, int64_t dim,
                float* scores, Feed* feed) {
  const int64_t whole = dim / kGroup * kGroup;
  for (int64_t t = 0; t < count; t += 4) {
    const char* row[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      row[j] = keys[min_of(t + j, count - 1)] + offset;
    }
    V sums[kR][4];
#pragma GCC unroll 4
    for (int m = 0; m < kR; ++m) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        sums[m][j] = Simd::zero();
      }
    }
    const auto step = [&](int64_t i, auto load) __attribute__((always_inline)) {
      if (feed != nullptr) {
        feed->advance(4 * F::row_bytes(kGroup));
      }
      V qa[kR], qb[kR];
#pragma GCC unroll 4
      for (int m = 0; m < kR; ++m) {
        qa[m] = Simd::load(query + m * stride + i);
        qb[m] = Simd::load(query + m * stride + i + Simd::kLanes);
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        V a, b;
        load(row[j], i, a, b);
#pragma GCC unroll 4
        for (int m = 0; m < kR; ++m) {
          sums[m][j] = Simd::fma(qb[m], b, Simd::fma(qa[m], a, sums[m][j]));
        }
      }
    };
    for (int64_t i = 0; i < whole; i += kGroup) {
      step(i, [](const char* p, int64_t at, V& a, V& b) { F::load(p, at, a, b); });
    }
    if (whole < dim) {
      step(whole, [&](const char* p, int64_t at, V& a, V& b) { F::load_tail(p, at, dim - whole, a, b); });
    }
#pragma GCC unroll 4
    for (int m = 0; m < kR; ++m) {
      Simd::store_sums4(scores + m * kScoreStride + t, sums[m][0], sums[m][1], sums[m][2], sums[m][3]);
    }
  }
}

// mixed[m, kG groups from i on] += sum over tokens of weight[m, t] * value[t].
template <class F, int kR, int kG, bool kTail>
void mix_groups(const float* weights, const char* const* values, int64_t offset, int64_t count, int64_t i, int64_t dim,
                float* mixed, int64_t stride, Feed* feed) {
  V sums[kR][kG][2];
#pragma GCC unroll 4
  for (int m = 0; m < kR; ++m) {
#pragma GCC unroll 4
    for (int g = 0; g < kG; ++g) {
      sums[m][g][0] = Simd::load(mixed + m * stride + i + g * kGroup);
      sums[m][g][1] = Simd::load(mixed + m * stride + i + g * kGroup + Simd::kLanes);
    }
  }
  for (int64_t t = 0; t < count; ++t) {
    if (feed != nullptr) {
      feed->advance(F::row_bytes(kG * kGroup));
    }
    const char* value = values[t] + offset;
    V weight[kR];
#pragma GCC unroll 4
    for (int m = 0; m < kR; ++m) {
      weight[m] = Simd::set(weights[m * kScoreStride + t]);
    }
#pragma GCC unroll 4
    for (int g = 0; g < kG; ++g) {
      V a, b;
      if (kTail) {
        F::load_tail(value, i + g * kGroup, dim - i, a, b);
      } else {
        F::load(value, i + g * kGroup, a, b);
      }
#pragma GCC unroll 4
      for (int m = 0; m < kR; ++m) {
        sums[m][g][0] = Simd::fma(weight[m], a, sums[m][g][0]);
        sums[m][g][1] = Simd::fma(weight[m], b, sums[m][g][1]);
      }
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kR; ++m) {
#pragma GCC unroll 4
    for (int g = 0; g < kG; ++g) {
      Simd::store(mixed + m * stride + i + g * kGroup, sums[m][g][0]);
      Simd::store(mixed + m * stride + i + g * kGroup + Simd::kLanes, sums[m][g][1]);
    }
  }
}

template <class F, int kR>
void mix_rows(const float* weights, const char* const* values, int64_t offset, int64_t count, int64_t dim, float* mixed,
              int64_t stride, Feed* feed) {
  int64_t i = 0;
  for (; i + 2 * kGroup <= dim; i += 2 * kGroup) {
    mix_groups<F, kR, 2, false>(weights, values, offset, count, i, dim, mixed, stride, feed);
  }
  for (; i + kGroup <= dim; i += kGroup) {
    mix_groups<F, kR, 1, false>(weights, values, offset, count, i, dim, mixed, stride, feed);
  }
  if (i < dim) {
    mix_groups<F, kR, 1, true>(weights, values, offset, count, i, dim, mixed, stride, feed);
  }
}

// Calls fn with the number of rows, at most kRows, as a constant.
template <int kN>
struct Count {
  static constexpr int value = kN;
};

template <class Fn>
void with_rows(int64_t rows, const Fn& fn) {
  if constexpr (kRows >= 4) {
    if (rows >= 4) return fn(Count<4>{});
    if (rows == 3) return fn(Count<3>{});
  }
  if (rows >= 2) return fn(Count<2>{});
  return fn(Count<1>{});
}

// Rows that are the arithmetic's and not memory's matter: turned to float32 once instead of once for every few rows.
struct Wide {
  static int64_t row_bytes(int64_t n) { return 4 * n; }
  static void load(const char* row, int64_t i, V& a, V& b) {
    const float* p = reinterpret_cast<const float*>(row) + i;
    a = Simd::load(p);
    b = Simd::load(p + Simd::kLanes);
  }
  static void load_tail(const char* row, int64_t i, int64_t, V& a, V& b) { load(row, i, a, b); }
};

template <class F>
void widen(const char* const* rows, int64_t offset, int64_t count, int64_t dim, float* out, const char** wide) {
  const int64_t whole = dim / kGroup * kGroup;
  const int64_t stride = round_up(dim, kGroup);
  for (int64_t t = 0; t < count; ++t, out += stride) {
    V a, b;
    for (int64_t i = 0; i < whole; i += kGroup) {
      F::load(rows[t] + offset, i, a, b);
      Simd::store(out + i, a);
      Simd::store(out + i + Simd::kLanes, b);
    }
    if (whole < dim) {
      F::load_tail(rows[t] + offset, whole, dim - whole, a, b);
      Simd::store(out + whole, a);
      Simd::store(out + whole + Simd::kLanes, b);
    }
    wide[t] = reinterpret_cast<const char*>(out);
  }
}

struct Range {
  int64_t begin, end;
};

// Tokens of the chunk that any of the `count` rows from `row` on sees, relative to the chunk's begin.
inline Range seen(const SpanTask& task, int64_t row, int64_t count, int64_t begin, int64_t end) {
  int64_t first = end, stop = begin;
  for (int64_t m = row; m < row + count; ++m) {
    first = min_of(first, task.first[m]);
    stop = max_of(stop, task.stop[m]);
  }
  first = max_of(first, begin);
  stop = min_of(stop, end);
  return first < stop ? Range{first - begin, stop - begin} : Range{0, 0};
}

// Where each token's row of head `head` lies.
inline void locate(const PagedRows& rows, const TokenRange& tokens, int64_t block_tokens, int64_t head,
                   const char** out) {
  int64_t block = tokens.begin / block_tokens, offset = tokens.begin % block_tokens;
  for (int64_t t = tokens.begin; t < tokens.end; ++block, offset = 0) {
    const char* row = rows.data + tokens.table[block] * rows.block_stride + offset * rows.token_stride +
                      head * rows.head_stride;
    for (; offset < block_tokens && t < tokens.end; ++offset, ++t, row += rows.token_stride) {
      *out++ = row;
    }
  }
}

inline void gather(const AttentionCall& call, const SpanTask& task, const TokenRange& tokens, const TokenRange& next,
                   Chunk& chunk) {
  const int64_t count = tokens.end - tokens.begin;
  chunk.count = count;
  locate(call.keys, tokens, call.block_tokens, task.head_begin, chunk.rows);
  locate(call.values, tokens, call.block_tokens, task.head_begin, chunk.rows + count);
  const int64_t num_next = min_of(Chunk::kNext, next.end - next.begin);
  locate(call.keys, {next.table, next.begin, next.begin + num_next}, call.block_tokens, task.head_begin,
         chunk.rows + 2 * count);
  chunk.num_rows = 2 * count + num_next;
  if (call.key_scales.data != nullptr) {
    locate(call.key_scales, tokens, call.block_tokens, 0, chunk.key_scale_rows);
    locate(call.value_scales, tokens, call.block_tokens, 0, chunk.value_scale_rows);
  }
}

inline void gather_scales(const AttentionCall& call, int64_t head, Chunk& chunk) {
  if (call.key_scales.data == nullptr) {
    return;
  }
  for (int64_t t = 0; t < chunk.count; ++t) {
    chunk.key_scales[t] = *reinterpret_cast<const float*>(chunk.key_scale_rows[t] + head * call.key_scales.head_stride);
    chunk.value_scales[t] =
        *reinterpret_cast<const float*>(chunk.value_scale_rows[t] + head * call.value_scales.head_stride);
  }
}

// Turns a row's scores into weights, over the tokens `range` that its row block has scores for; those that the row
// does not see weigh nothing. Returns what earlier chunks' sums are to be multiplied by.
inline float weigh(const AttentionCall& call, const Chunk& chunk, float* scores, Range range, Range visible,
                   float* largest, float* sum) {
  const bool scaled = call.key_scales.data != nullptr;
  const V factor = Simd::set(call.scale * 1.44269504088896341f);
  for (int64_t t = range.begin; t < range.end; t += Simd::kLanes) {
    V score = Simd::mul(Simd::load(scores + t), factor);
    score = scaled ? Simd::mul(score, Simd::load(chunk.key_scales + t)) : score;
    Simd::store(scores + t, score);
  }
  for (int64_t t = range.begin; t < visible.begin; ++t) {
    scores[t] = -kInfinity;
  }
  for (int64_t t = visible.end; t < range.end + Simd::kLanes; ++t) {
    scores[t] = -kInfinity;
  }
  V top = Simd::set(-kInfinity);
  for (int64_t t = range.begin; t < range.end; t += Simd::kLanes) {
    top = Simd::max(top, Simd::load(scores + t));
  }
  const float before = *largest;
  const float peak = Simd::max_of(top);
  *largest = peak > before || peak != peak ? peak : before;
  const V shift = Simd::set(-*largest);
  V total = Simd::zero();
  for (int64_t t = range.begin; t < range.end; t += Simd::kLanes) {
    V weight = Simd::exp2(Simd::add(Simd::load(scores + t), shift));
    total = Simd::add(total, weight);
    Simd::store(scores + t, scaled ? Simd::mul(weight, Simd::load(chunk.value_scales + t)) : weight);
  }
  const float kept = *sum == 0.0f ? 0.0f : Simd::first(Simd::exp2(Simd::set(before - *largest)));
  *sum = *sum * kept + Simd::sum_of(total);
  return kept;
}

// One chunk of a task as its passes see it: parts of its tokens in turn, in each all heads, in each all rows.
template <class F>
class ChunkRun {
 public:
  ChunkRun(const AttentionCall& call, const SpanTask& task, const SpanResult& result, int64_t begin, Chunk& chunk)
      : call_(call), task_(task), result_(result), chunk_(chunk), begin_(begin), end_(begin + chunk.count),
        num_heads_(task.head_end - task.head_begin), query_stride_(round_up(call.key_dim, kGroup)),
        mixed_stride_(round_up(call.value_dim, kGroup)), is_wide_(F::kWiden && task.rows > 2 * kRows),
        wide_rows_(task.scratch + num_heads_ * task.rows * kScoreStride) {}

  void run() {
    const Range all = seen(task_, 0, task_.rows, begin_, end_);
    const int64_t bytes = num_heads_ == 1 ? F::row_bytes(call_.key_dim) : num_heads_ * call_.keys.head_stride;
    const int64_t key_part = part_tokens(bytes, query_stride_), value_part = part_tokens(bytes, mixed_stride_);
    // one part ahead; what is read twice is fetched once
    Feed feed(chunk_.rows, call_.keys.data == call_.values.data ? chunk_.count : chunk_.num_rows, bytes,
              key_part / Feed::kLanes, all.begin + key_part);
    for (int64_t part = all.begin; part < all.end; part += key_part) {
      for (int64_t head = 0; head < num_heads_; ++head) {
        score({part, min_of(all.end, part + key_part)}, head, feed);
      }
    }
    for (int64_t head = 0; head < num_heads_; ++head) {
      gather_scales(call_, task_.head_begin + head, chunk_);
      weigh_rows(head);
    }
    for (int64_t part = all.begin; part < all.end; part += value_part) {
      for (int64_t head = 0; head < num_heads_; ++head) {
        mix({part, min_of(all.end, part + value_part)}, head, feed);
      }
    }
  }

 private:
  // Of one head the wide rows stay in the nearest cache; of several a part of all heads stays in the second.
  int64_t part_tokens(int64_t bytes, int64_t stride) const {
    return max_of(4, min_of(Chunk::kNext, is_wide_ ? kWideFloats / stride / 4 * 4 : kPartBytes / bytes / 4 * 4));
  }

  float* scores_of(int64_t head, int64_t row) const {
    return task_.scratch + (head * task_.rows + row) * kScoreStride;
  }

  void score(Range part, int64_t head, Feed& feed) {
    const int64_t offset = head * call_.keys.head_stride;
    if (is_wide_) {
      widen<F>(chunk_.keys() + part.begin, offset, part.end - part.begin, call_.key_dim, wide_rows_, wide_);
    }
    for (int64_t row = 0; row < task_.rows;) {
      with_rows(task_.rows - row, [&](auto rows) {
        constexpr int kR = decltype(rows)::value;
        const Range range = seen(task_, row, kR, begin_, end_);
        const int64_t from = max_of(range.begin, part.begin), to = min_of(range.end, part.end);
        const float* query = task_.query + (head * task_.rows + row) * query_stride_;
        float* out = scores_of(head, row) + from;
        if (from < to && is_wide_) {
          score_rows<Wide, kR>(query, query_stride_, wide_ + (from - part.begin), 0, to - from, query_stride_, out,
                               nullptr);
        } else if (from < to) {
          score_rows<F, kR>(query, query_stride_, chunk_.keys() + from, offset, to - from, call_.key_dim, out,
                            row == 0 ? &feed : nullptr);
        }
        row += kR;
      });
    }
  }

  void weigh_rows(int64_t head) {
    for (int64_t row = 0; row < task_.rows; row += kRows) {
      const int64_t count = min_of(kRows, task_.rows - row);
      const Range range = seen(task_, row, count, begin_, end_);
      for (int64_t m = row; m < row + count; ++m) {
        const Range own = seen(task_, m, 1, begin_, end_);
        float* weights = scores_of(head, m);
        if (own.begin == own.end) {
          for (int64_t t = range.begin; t < range.end; ++t) {
            weights[t] = 0.0f;
          }
          continue;
        }
        const int64_t at = head * result_.head_stride;
        const float kept = weigh(call_, chunk_, weights, range, own, result_.largest + at + m, result_.sum + at + m);
        float* mixed = result_.mixed + at + m * mixed_stride_;
        for (int64_t i = 0; kept != 1.0f && i < mixed_stride_; i += Simd::kLanes) {
          Simd::store(mixed + i, Simd::mul(Simd::load(mixed + i), Simd::set(kept)));
        }
      }
    }
  }

  void mix(Range part, int64_t head, Feed& feed) {
    const int64_t offset = head * call_.values.head_stride;
    if (is_wide_) {
      widen<F>(chunk_.values() + part.begin, offset, part.end - part.begin, call_.value_dim, wide_rows_, wide_);
    }
    for (int64_t row = 0; row < task_.rows;) {
      with_rows(task_.rows - row, [&](auto rows) {
        constexpr int kR = decltype(rows)::value;
        const Range range = seen(task_, row, kR, begin_, end_);
        const int64_t from = max_of(range.begin, part.begin), to = min_of(range.end, part.end);
        const float* weights = scores_of(head, row) + from;
        float* mixed = result_.mixed + head * result_.head_stride + row * mixed_stride_;
        if (from < to && is_wide_) {
          mix_rows<Wide, kR>(weights, wide_ + (from - part.begin), 0, to - from, mixed_stride_, mixed, mixed_stride_,
                             nullptr);
        } else if (from < to) {
          mix_rows<F, kR>(weights, chunk_.values() + from, offset, to - from, call_.value_dim, mixed, mixed_stride_,
                          row == 0 ? &feed : nullptr);
        }
        row += kR;
      });
    }
  }

  static constexpr int64_t kPartBytes = 128 << 10;

  const AttentionCall& call_;
  const SpanTask& task_;
  const SpanResult& result_;
  Chunk& chunk_;
  const int64_t begin_, end_;
  const int64_t num_heads_;
  const int64_t query_stride_, mixed_stride_;
  const bool is_wide_;
  float* const wide_rows_;
  const char* wide_[kChunkTokens];
};

template <class F>
void run_span(const AttentionCall& call, const SpanTask& task, const SpanResult& result) {
  for (int64_t head = 0; head < task.head_end - task.head_begin; ++head) {
    const int64_t at = head * result.head_stride;
    for (int64_t i = 0; i < task.rows * round_up(call.value_dim, kGroup); i += Simd::kLanes) {
      Simd::store(result.mixed + at + i, Simd::zero());
    }
    for (int64_t m = 0; m < task.rows; ++m) {
      result.largest[at + m] = -kInfinity;
      result.sum[at + m] = 0.0f;
    }
  }
  Chunk chunk;
  for (int64_t t = 0; t < kScoreStride; ++t) {
    chunk.key_scales[t] = chunk.value_scales[t] = 1.0f;
  }
  for (TokenRange tokens = task.tokens; tokens.begin < task.tokens.end; tokens.begin = tokens.end) {
    tokens.end = min_of(task.tokens.end, (tokens.begin / kChunkTokens + 1) * kChunkTokens);
    const TokenRange rest{tokens.table, tokens.end, task.tokens.end};
    gather(call, task, tokens, rest.begin < rest.end ? rest : task.next, chunk);
    ChunkRun<F>(call, task, result, tokens.begin, chunk).run();
  }
}

template <class F>
SpanKernel kernel_of() {
  return {run_span<F>, kGroup, F::kSplit};
}

SpanKernel kernel_of(KvFormat format) {
  switch (format) {
    case KvFormat::bf16:
      return kernel_of<Bf16>();
    case KvFormat::fp16:
      return kernel_of<Fp16>();
    case KvFormat::int8:
      return kernel_of<Int8>();
    case KvFormat::int4:
      return kernel_of<Int4>();
    default:
      return kernel_of<Fp32>();
  }
}

}  // namespace
}  // namespace moesaic
