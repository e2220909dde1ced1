// A few rows (decode): each weight is loaded once, widened in a register and multiplied with every row's activation.
//
// Four rows of weights stream by at once, each with its own prefetches, as in stream_read: two halves of the gate rows
// and two of the up rows. Sums stay in vectors along the input axis and are added across lanes once, at the row's end.
// For inclusion in one file per instruction set.
#pragma once

#include "experts.h"
#include "experts_formats.h"
#include "experts_math.h"

namespace moesaic {
namespace {

constexpr int64_t kLine = 64;

// How the rows of x lie for gate and up: as floats, in the order of the format's loads.
template <class V, class F>
struct FloatInput {
  using Element = float;
  static constexpr int kVectors = F::kVectors;
  static void load(const Element* x, typename V::F (&out)[kVectors]) {
    for (int v = 0; v < kVectors; ++v) {
      out[v] = V::load(x + v * V::kWidth);
    }
  }
  static void put(Element* row, const Activations& x, int64_t from, int64_t k) {
    row[F::place(k)] = element(x, from + k);
  }
  static void put_zero(Element* row, int64_t k) { row[F::place(k)] = 0.0f; }
};

// As the bf16 they are, against weights of bf16: half the room in the first-level cache, which four rows fill.
template <class V, class F>
struct Bf16Input {
  using Element = uint16_t;
  static constexpr int kVectors = F::kVectors;
  static void load(const Element* x, typename V::F (&out)[kVectors]) { V::load_bf16_pairs(x, out[0], out[1]); }
  static void put(Element* row, const Activations& x, int64_t from, int64_t k) {
    row[k] = static_cast<const uint16_t*>(x.data)[from + k];
  }
  static void put_zero(Element* row, int64_t k) { row[k] = 0; }
};

// X: one of the above, for gate and up; act(gate) * up is always floats.
template <class V, class F, class X = FloatInput<V, F>>
struct FewRows {
  using Vec = typename V::F;
  using Floats = FloatInput<V, F>;
  static constexpr int64_t kMaxRows = 8;
  static constexpr int64_t kMaxUnits = 64;

  // Rows of weights taken at once with R rows of x.
  static constexpr int streams(int rows) {
    return V::kAccumulators >= 4 * rows ? 4 : (V::kAccumulators >= 2 * rows ? 2 : 1);
  }

  static int64_t padded(int64_t k) { return round_up(k, F::kStep); }
  static size_t x_bytes(const PageShape& shape, int64_t rows) {
    return static_cast<size_t>(rows * padded(shape.hidden)) * sizeof(typename X::Element);
  }
  static size_t h_bytes(const PageShape& shape, int64_t rows, int64_t num_pages) {
    return static_cast<size_t>(rows * num_pages * padded(shape.page_units)) * sizeof(float);
  }
  static size_t scratch_bytes(const PageShape&, int64_t rows) {
    return kLaneBytes + static_cast<size_t>(rows * kMaxOutputs) * sizeof(float);
  }

  static void pack(const PageShape& shape, const RowBlock& block, const Activations& x, int64_t row, int64_t begin,
                   int64_t end) {
    auto* to = reinterpret_cast<typename X::Element*>(block.x) + row * padded(shape.hidden);
    const int64_t from = block.token[row] * shape.hidden;
    for (int64_t k = begin; k < end; ++k) {
      X::put(to, x, from, k);
    }
    if (end == shape.hidden) {
      zero_padding<X>(to, end);
    }
  }

  static void gate_up(const PageShape& shape, const RowBlock& block, int64_t page, int64_t begin, int64_t end, char*) {
    switch (block.num_rows) {
      case 1:
        return gate_up_rows<1>(shape, block, page, begin, end);
      case 2:
        return gate_up_rows<2>(shape, block, page, begin, end);
      case 3:
        return gate_up_rows<3>(shape, block, page, begin, end);
      case 4:
        return gate_up_rows<4>(shape, block, page, begin, end);
      case 5:
        return gate_up_rows<5>(shape, block, page, begin, end);
      case 6:
        return gate_up_rows<6>(shape, block, page, begin, end);
      case 7:
        return gate_up_rows<7>(shape, block, page, begin, end);
      default:
        return gate_up_rows<8>(shape, block, page, begin, end);
    }
  }

  static void down(const PageShape& shape, const RowBlock& block, int64_t begin, int64_t end, float* out,
                   const uint8_t* next, char* scratch) {
    float* lanes = reinterpret_cast<float*>(scratch);
    float* sums = lanes + kLaneBytes / sizeof(float);  // [rows, end - begin]
    switch (block.num_rows) {
      case 1:
        down_rows<1>(shape, block, begin, end, next, sums, lanes);
        break;
      case 2:
        down_rows<2>(shape, block, begin, end, next, sums, lanes);
        break;
      case 3:
        down_rows<3>(shape, block, begin, end, next, sums, lanes);
        break;
      case 4:
        down_rows<4>(shape, block, begin, end, next, sums, lanes);
        break;
      case 5:
        down_rows<5>(shape, block, begin, end, next, sums, lanes);
        break;
      case 6:
        down_rows<6>(shape, block, begin, end, next, sums, lanes);
        break;
      case 7:
        down_rows<7>(shape, block, begin, end, next, sums, lanes);
        break;
      default:
        down_rows<8>(shape, block, begin, end, next, sums, lanes);
        break;
    }
    const int64_t count = end - begin;
    for (int64_t r = 0; r < block.num_rows; ++r) {
      float* to = out + block.token[r] * shape.hidden + begin;
      for (int64_t i = 0; i < count; ++i) {
        to[i] += block.weight[r] * sums[r * count + i];
      }
    }
  }

  static ExpertKernels kernels() {
    return {kMaxRows, 1, kMaxUnits, kMaxOutputs, x_bytes, h_bytes, scratch_bytes, pack, gate_up, down};
  }

 private:
  static constexpr int64_t kMaxOutputs = 512;
  static constexpr int64_t kLaneBytes = 16384;

  template <class In>
  static void zero_padding(typename In::Element* row, int64_t count) {
    for (int64_t k = count; k < padded(count); ++k) {
      In::put_zero(row, k);
    }
  }

  // A step's vectors of weights times R rows of x.
  template <class In, int R>
  static inline __attribute__((always_inline)) void add(const Vec (&w)[F::kVectors], const typename In::Element* x,
                                                        int64_t stride, Vec (&acc)[R]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      Vec in[F::kVectors];
      In::load(x + r * stride, in);
      for (int v = 0; v < F::kVectors; ++v) {
        acc[r] = V::fma(w[v], in[v], acc[r]);
      }
    }
  }

  template <class In, int R>
  static inline __attribute__((always_inline)) void add_scaled(const Vec (&w)[F::kVectors], Vec scale,
                                                               const typename In::Element* x, int64_t stride,
                                                               Vec (&acc)[R]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      Vec in[F::kVectors];
      In::load(x + r * stride, in);
      Vec sum = V::mul(w[0], in[0]);
      for (int v = 1; v < F::kVectors; ++v) {
        sum = V::fma(w[v], in[v], sum);
      }
      acc[r] = V::fma(sum, scale, acc[r]);
    }
  }

  // Adds the products of U rows of weights with R rows of x, `count` elements long, lane by lane; rows of x are
  // `stride` apart and padded. Row u of weights meets x + u * step.
  template <class In, int U, int R, bool kPrefetch>
  static inline __attribute__((always_inline)) void accumulate(const typename F::Row (&rows)[U],
                                                               const typename In::Element* x, int64_t step,
                                                               int64_t stride, int64_t count, Vec (&acc)[U][R]) {
    int64_t k = 0;
    for (; k + F::kStep <= count; k += F::kStep) {
#pragma GCC unroll 4  // else the sums of four rows with four rows are kept in memory
      for (int u = 0; u < U; ++u) {
        if (kPrefetch) {  // past the end it is harmless: a prefetch never faults
          __builtin_prefetch(static_cast<const char*>(F::address(rows[u], k)) + V::kAheadBytes);
        }
        Vec w[F::kVectors];
        F::load(rows[u], k, w);
        if constexpr (F::kScale == Scale::step) {
          add_scaled<In, R>(w, F::scale(rows[u], k), x + u * step + k, stride, acc[u]);
        } else {
          add<In, R>(w, x + u * step + k, stride, acc[u]);
        }
      }
    }
    if (k < count) {
      for (int u = 0; u < U; ++u) {
        Vec w[F::kVectors];
        F::load_part(rows[u], k, count - k, w);
        if constexpr (F::kScale == Scale::step) {
          add_scaled<In, R>(w, F::scale_part(rows[u], k, count - k), x + u * step + k, stride, acc[u]);
        } else {
          add<In, R>(w, x + u * step + k, stride, acc[u]);
        }
      }
    }
  }

  template <int U, int R>
  static inline __attribute__((always_inline)) void dots(const typename F::Row (&rows)[U], const typename X::Element* x,
                                                         int64_t stride, int64_t count, float (&sums)[U][R]) {
    Vec acc[U][R];
    for (int u = 0; u < U; ++u) {
      for (int r = 0; r < R; ++r) {
        acc[u][r] = V::set1(0.0f);
      }
    }
    accumulate<X, U, R, true>(rows, x, 0, stride, count, acc);
    for (int u = 0; u < U; ++u) {
      for (int r = 0; r < R; ++r) {
        sums[u][r] = V::sum(acc[u][r]);
        if constexpr (F::kScale == Scale::row) {
          sums[u][r] *= F::row_scale(rows[u]);
        }
      }
    }
  }

  template <int R>
  static void gate_up_rows(const PageShape& shape, const RowBlock& block, int64_t page, int64_t begin, int64_t end) {
    alignas(64) float gate[R][kMaxUnits] = {}, up[R][kMaxUnits] = {};
    const auto gates = F::matrix(shape, block.pages[page], BlockKind::gate);
    const auto ups = F::matrix(shape, block.pages[page], BlockKind::up);
    const auto* x = reinterpret_cast<const typename X::Element*>(block.x);
    const int64_t hidden = shape.hidden, stride = padded(hidden), count = end - begin;
    int64_t i = 0;
    if constexpr (streams(R) == 4) {
      const int64_t half = count / 2;
      for (; i < half; ++i) {
        float sums[4][R];
        dots<4, R>({F::row(gates, begin + i), F::row(gates, begin + half + i), F::row(ups, begin + i),
                    F::row(ups, begin + half + i)},
                   x, stride, hidden, sums);
        for (int r = 0; r < R; ++r) {
          gate[r][i] = sums[0][r], gate[r][half + i] = sums[1][r];
          up[r][i] = sums[2][r], up[r][half + i] = sums[3][r];
        }
      }
      i = 2 * half;
    }
    for (; i < count; ++i) {
      float sums[2][R];
      if constexpr (streams(R) >= 2) {
        dots<2, R>({F::row(gates, begin + i), F::row(ups, begin + i)}, x, stride, hidden, sums);
      } else {
        float one[1][R];
        dots<1, R>({F::row(gates, begin + i)}, x, stride, hidden, one);
        __builtin_memcpy(sums[0], one[0], sizeof one);
        dots<1, R>({F::row(ups, begin + i)}, x, stride, hidden, one);
        __builtin_memcpy(sums[1], one[0], sizeof one);
      }
      for (int r = 0; r < R; ++r) {
        gate[r][i] = sums[0][r], up[r][i] = sums[1][r];
      }
    }
    const int64_t page_stride = padded(shape.page_units);
    for (int r = 0; r < R; ++r) {
      for (i = 0; i < count; i += V::kWidth) {
        V::store(gate[r] + i, activate<V>(shape.activation, V::load(gate[r] + i)) * V::load(up[r] + i));
      }
      float* h = reinterpret_cast<float*>(block.h) + (r * block.num_pages + page) * page_stride;
      for (i = 0; i < count; ++i) {
        h[F::place(begin + i)] = gate[r][i];
      }
      if (end == shape.page_units) {
        zero_padding<Floats>(h, shape.page_units);
      }
    }
  }

  // Outputs go by runs that are as long as their sums, still in vectors, stay in the first-level cache: lanes are
  // added up once for all pages.
  template <int R>
  static void down_rows(const PageShape& shape, const RowBlock& block, int64_t begin, int64_t end, const uint8_t* next,
                        float* out, float* lanes) {
    constexpr int64_t kRun = kLaneBytes / (R * static_cast<int64_t>(sizeof(Vec)));
    const int64_t count = end - begin;
    for (int64_t first = begin; first < end; first += kRun) {
      const int64_t stop = first + kRun < end ? first + kRun : end;
      for (int64_t i = 0; i < (stop - first) * R; ++i) {
        V::store(lanes + i * V::kWidth, V::set1(0.0f));
      }
      // Pages side by side are so many streams, and share the sums' way from and to the cache.
      int64_t page = 0;
      const Run run{first, stop, stop < end ? stop : begin, stop < end ? block.pages[0] : next};
      for (; streams(R) == 4 && page + 4 <= block.num_pages; page += 4) {
        add_pages<4, R>(shape, block, page, run, lanes);
      }
      for (; streams(R) >= 2 && page + 2 <= block.num_pages; page += 2) {
        add_pages<2, R>(shape, block, page, run, lanes);
      }
      for (; page < block.num_pages; ++page) {
        add_pages<1, R>(shape, block, page, run, lanes);
      }
      for (int64_t i = 0; i < stop - first; ++i) {
        for (int r = 0; r < R; ++r) {
          out[r * count + first - begin + i] = V::sum(V::load(lanes + (i * R + r) * V::kWidth));
        }
      }
    }
  }

  // Outputs [first, stop), and where reading goes on after their last page: row `jump_row` of `following` (or null).
  struct Run {
    int64_t first, stop, jump_row;
    const uint8_t* following;
  };

  // Adds the parts of U pages, beginning with `page`, to the run's lanes.
  template <int U, int R>
  static void add_pages(const PageShape& shape, const RowBlock& block, int64_t page, const Run& run, float* lanes) {
    const int64_t page_stride = padded(shape.page_units), stride = block.num_pages * page_stride;
    const float* h = reinterpret_cast<const float*>(block.h) + page * page_stride;
    typename F::Matrix downs[U];
    const char* here[U];
    const char* jump[U];
    for (int u = 0; u < U; ++u) {
      downs[u] = F::matrix(shape, block.pages[page + u], BlockKind::down);
      here[u] = static_cast<const char*>(F::address(F::row(downs[u], run.first), 0));
      const bool last = page + U + u >= block.num_pages;
      const uint8_t* following =
          !last ? block.pages[page + U + u] : (page + U + u == block.num_pages ? run.following : nullptr);
      jump[u] = nullptr;
      if (following != nullptr) {
        const auto then = F::matrix(shape, following, BlockKind::down);
        jump[u] = static_cast<const char*>(F::address(F::row(then, last ? run.jump_row : run.first), 0));
      }
    }
    const int64_t row_bytes = F::row_bytes(downs[0]), run_bytes = (run.stop - run.first) * row_bytes;
    int64_t ahead = V::kAheadBytes;
    for (int64_t i = run.first; i < run.stop; ++i) {
      for (const int64_t until = ahead + row_bytes; ahead < until; ahead += kLine) {
        for (int u = 0; u < U; ++u) {
          if (ahead < run_bytes) {
            __builtin_prefetch(here[u] + ahead);
          } else if (jump[u] != nullptr) {
            __builtin_prefetch(jump[u] + (ahead - run_bytes));
          }
        }
      }
      typename F::Row rows[U];
      for (int u = 0; u < U; ++u) {
        rows[u] = F::row(downs[u], i);
      }
      add_rows<U, R>(rows, h, page_stride, stride, shape.page_units, lanes + (i - run.first) * R * V::kWidth);
    }
  }

  template <int U, int R>
  static inline __attribute__((always_inline)) void add_rows(const typename F::Row (&rows)[U], const float* h,
                                                             int64_t step, int64_t stride, int64_t count,
                                                             float* lanes) {
    Vec acc[U][R];
    for (int u = 0; u < U; ++u) {
      for (int r = 0; r < R; ++r) {
        acc[u][r] = V::set1(0.0f);
      }
    }
    accumulate<Floats, U, R, false>(rows, h, step, stride, count, acc);
    for (int r = 0; r < R; ++r) {
      Vec sum = V::load(lanes + r * V::kWidth);
      for (int u = 0; u < U; ++u) {
        if constexpr (F::kScale == Scale::row) {
          sum = V::fma(acc[u][r], V::set1(F::row_scale(rows[u])), sum);
        } else {
          sum = V::add(sum, acc[u][r]);
        }
      }
      V::store(lanes + r * V::kWidth, sum);
    }
  }
};

}  // namespace
}  // namespace moesaic
