// Multiplies without a matrix unit: weights are turned into cells once, in a panel that stays in cache, then each is
// broadcast against vectors of 16 rows of x. For inclusion in one file per instruction set.
#pragma once

#include "experts_few.h"
#include "experts_many.h"

namespace moesaic {
namespace {

// Cells of one float, in the order in which the format's loads give them.
template <class Vector, class Format>
struct FloatCells {
  using V = Vector;
  using F = Format;
  using Cell = float;
  using Lanes = typename V::F;
  static constexpr int64_t kCell = 1;
  static constexpr int64_t kBlockK = 128;  // a panel, and a tile of x as long, stay in the first-level cache

  static int64_t padded(int64_t k) { return round_up(k, F::kStep); }
  static Lanes load(const Cell* p) { return V::load(p); }
  static Lanes broadcast(const Cell* p) { return V::set1(*p); }
  static typename V::F fma(Lanes weight, Lanes x, typename V::F sum) { return V::fma(weight, x, sum); }

  static void store_two(Cell* cells, int64_t k, const float (&two)[2][kTile]) {
    for (int64_t i = 0; i < 2; ++i) {
      __builtin_memcpy(cells + F::place(k + i) * kTile, two[i], sizeof two[i]);
    }
  }

  // Elements [k, k + count) of a row of weights, zero up to padded(count).
  static void widen(const typename F::Row& row, int64_t k, int64_t count, Cell* to) {
    Lanes w[F::kVectors];
    int64_t i = 0;
    for (; i + F::kStep <= count; i += F::kStep) {
      F::load(row, k + i, w);
      if constexpr (F::kScale == Scale::step) {
        store(to + i, w, F::scale(row, k + i));
      } else {
        store_row(to + i, w, row);
      }
    }
    if (i < count) {
      F::load_part(row, k + i, count - i, w);
      if constexpr (F::kScale == Scale::step) {
        store(to + i, w, F::scale_part(row, k + i, count - i));
      } else {
        store_row(to + i, w, row);
      }
    }
  }

 private:
  static void store(Cell* to, const Lanes (&w)[F::kVectors], Lanes scale) {
    for (int v = 0; v < F::kVectors; ++v) {
      V::store(to + v * V::kWidth, w[v] * scale);
    }
  }
  static void store_row(Cell* to, const Lanes (&w)[F::kVectors], const typename F::Row& row) {
    if constexpr (F::kScale == Scale::row) {
      store(to, w, V::set1(F::row_scale(row)));
    } else {
      for (int v = 0; v < F::kVectors; ++v) {
        V::store(to + v * V::kWidth, w[v]);
      }
    }
  }
};

// C: what cells are, and how they are multiplied.
template <class C>
struct Panel : C {
  using typename C::Cell;
  using typename C::F;
  using typename C::V;
  using Matrix = typename F::Matrix;
  static constexpr int64_t kMaxRows = 512;
  static constexpr int64_t kMaxUnits = 64;
  static constexpr int64_t kMaxOutputs = 128;
  static constexpr int64_t kMatrices = 1;
  static constexpr int64_t kRows = 16;  // of a panel
  static constexpr int64_t kBlockCells = C::kBlockK / C::kCell;
  static constexpr int64_t kResidentBytes = 1 << 20;
  static constexpr size_t kScratchBytes = static_cast<size_t>(kRows * kBlockCells) * sizeof(Cell);
  static constexpr int kVectorsPerTile = static_cast<int>(kTile) / V::kWidth;
  static constexpr int at_least_two(int count) { return count < 2 ? 2 : count; }

  static void add(const Product<Matrix, Cell>& product) {
    const Matrix& matrix = product.matrices[0];
    Cell* panel = reinterpret_cast<Cell*>(product.scratch);
    const int64_t groups = (product.num_rows + kRows - 1) / kRows;
    const int64_t blocks = (product.num_k + C::kBlockK - 1) / C::kBlockK;
    // Where all of x stays in the second-level cache, rows of weights are read from end to end; else blocks of x stay.
    const bool whole_rows =
        product.lanes() * C::padded(product.num_k) * static_cast<int64_t>(sizeof(Cell)) / C::kCell <= kResidentBytes;
    const auto row_at = [&](int64_t turn) { return (whole_rows ? turn / blocks : turn % groups) * kRows; };
    const auto k_at = [&](int64_t turn) { return (whole_rows ? turn % blocks : turn / groups) * C::kBlockK; };
    for (int64_t turn = 0; turn < groups * blocks; ++turn) {
      const int64_t row = row_at(turn), k = k_at(turn);
      const int64_t rows = min(kRows, product.num_rows - row), count = min(C::kBlockK, product.num_k - k);
      for (int64_t i = 0; i < rows; ++i) {
        C::widen(F::row(matrix, product.first + row + i), k, count, panel + i * kBlockCells);
      }
      Ahead ahead(matrix, product.next);
      if (turn + 1 < groups * blocks) {
        ahead = Ahead(matrix, static_cast<const char*>(
                                  F::address(F::row(matrix, product.first + row_at(turn + 1)), k_at(turn + 1))));
      }
      all_tiles(product, panel, rows, C::padded(count) / C::kCell, product.x + k / C::kCell * kTile,
                product.sums + row * product.lanes(), ahead);
    }
  }

 private:
  // What is prefetched while the arithmetic runs: the rows that the next panel is made of.
  struct Ahead {
    const char* row = nullptr;
    int64_t row_bytes = 0;  // from one row to the next
    int64_t bytes = 0;      // of each row
    int64_t offset = 0;

    Ahead() = default;
    Ahead(const Matrix& matrix, const char* start) : row(start), row_bytes(F::row_bytes(matrix)) {
      const char* first = static_cast<const char*>(F::address(F::row(matrix, 0), 0));
      const int64_t block = static_cast<const char*>(F::address(F::row(matrix, 0), C::kBlockK)) - first;
      bytes = start == nullptr ? 0 : min(row_bytes, block);
    }
    int64_t lines() const { return (bytes + kLine - 1) / kLine; }
    void line() {
      __builtin_prefetch(row + offset);
      offset += kLine;
      if (offset >= bytes) {
        offset = 0;
        row += row_bytes;
      }
    }
  };

  static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

  // A panel times all tiles of x.
  static void all_tiles(const Product<Matrix, Cell>& product, const Cell* panel, int64_t rows, int64_t width,
                        const Cell* x, float* sums, Ahead ahead) {
    int64_t tile = 0;
    for (; tile + 2 <= product.num_tiles; tile += 2) {
      tiles<2, at_least_two(V::kAccumulators / (2 * kVectorsPerTile))>(panel, rows, width, x + tile * product.tile_step,
                                                                       product.tile_step, sums + tile * kTile,
                                                                       product.lanes(), ahead);
      ahead = Ahead();
    }
    if (tile < product.num_tiles) {
      tiles<1, V::kAccumulators / kVectorsPerTile>(panel, rows, width, x + tile * product.tile_step, product.tile_step,
                                                   sums + tile * kTile, product.lanes(), ahead);
    }
  }

  // T tiles of x with all rows of the panel, U at a time.
  template <int T, int U>
  static void tiles(const Cell* panel, int64_t num_rows, int64_t width, const Cell* x, int64_t tile_step, float* sums,
                    int64_t lanes, Ahead ahead) {
    int64_t i = 0;
    for (; i + U <= num_rows; i += U) {
      block<T, U>(panel + i * kBlockCells, width, x, tile_step, sums + i * lanes, lanes, ahead);
    }
    for (; i < num_rows; ++i) {
      block<T, 1>(panel + i * kBlockCells, width, x, tile_step, sums + i * lanes, lanes, ahead);
    }
  }

  template <int T, int U>
  static void block(const Cell* panel, int64_t width, const Cell* x, int64_t tile_step, float* sums, int64_t lanes,
                    Ahead& ahead) {
    constexpr int N = kVectorsPerTile;
    constexpr int64_t kTurn = 16;
    typename V::F acc[U][T * N];
    for (int u = 0; u < U; ++u) {
      for (int v = 0; v < T * N; ++v) {
        acc[u][v] = V::load(sums + u * lanes + v * V::kWidth);
      }
    }
    const int64_t turns = (width + kTurn - 1) / kTurn;
    const int64_t lines = (U * ahead.lines() + turns - 1) / turns;
    for (int64_t begin = 0; begin < width; begin += kTurn) {
      for (int64_t i = 0; i < lines; ++i) {
        ahead.line();
      }
      const int64_t end = min(begin + kTurn, width);
#pragma GCC unroll 2
      for (int64_t k = begin; k < end; ++k) {
        typename C::Lanes in[T * N];
        for (int v = 0; v < T * N; ++v) {
          in[v] = C::load(x + (v / N) * tile_step + k * kTile + (v % N) * V::kWidth);
        }
        for (int u = 0; u < U; ++u) {
          const typename C::Lanes weight = C::broadcast(panel + u * kBlockCells + k);
          for (int v = 0; v < T * N; ++v) {
            acc[u][v] = C::fma(weight, in[v], acc[u][v]);
          }
        }
      }
    }
    for (int u = 0; u < U; ++u) {
      for (int v = 0; v < T * N; ++v) {
        V::store(sums + u * lanes + v * V::kWidth, acc[u][v]);
      }
    }
  }
};

// Few rows of bf16 with weights of bf16.
template <class V>
using Bf16Rows = FewRows<V, Bf16<V>, Bf16Input<V, Bf16<V>>>;

template <class V>
const ExpertKernelPair* bf16_kernel_pair() {
  static const ExpertKernelPair pair{Bf16Rows<V>::kernels(), ManyRows<Panel<FloatCells<V, Bf16<V>>>>::kernels()};
  return &pair;
}

template <class V, template <class> class Format>
const ExpertKernelPair* kernel_pair() {
  static const ExpertKernelPair pair{FewRows<V, Format<V>>::kernels(),
                                     ManyRows<Panel<FloatCells<V, Format<V>>>>::kernels()};
  return &pair;
}

}  // namespace
}  // namespace moesaic
