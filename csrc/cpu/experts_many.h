// Many rows: blocks of weights are multiplied with tiles of 16 rows of x that lie side by side in memory.
//
// This file is what is the same for every multiplier M: packing, the activation, pages, and adding to the output.
//
//   M::F, M::V       the weight format, and vectors for the elementwise part
//   M::Cell          4 bytes of a packed row of x: kCell elements, 1 (float) or 2 (bf16 pair). A tile is, for each cell
//                    along the input axis, the cells of its 16 rows
//   M::padded(k)     elements of a packed row of k elements
//   M::store_two     puts elements k and k + 1 of 16 rows into their cells
//   M::kMaxRows, kMaxUnits, kMaxOutputs, kScratchBytes
//   M::kMatrices     matrices of a product at most
//   M::add(product)  sums += all its matrices times x
// For inclusion in one file per instruction set.
#pragma once

#include "experts.h"
#include "experts_formats.h"
#include "experts_math.h"

namespace moesaic {
namespace {

constexpr int64_t kTile = 16;  // rows of x side by side

// sums [num_rows, 16 * num_tiles] += rows [first, first + num_rows) of each matrix times its part of x, which begins
// x_step cells after that of the matrix before.
template <class Matrix, class Cell>
struct Product {
  const Matrix* matrices;
  int64_t num_matrices;
  int64_t first, num_rows;
  int64_t num_k;  // elements of a matrix's row
  const Cell* x;
  int64_t x_step, tile_step;  // in cells
  int64_t num_tiles;
  float* sums;
  char* scratch;
  const char* next;  // the row where reading goes on afterwards, as far from the one after it as these are, or null

  int64_t lanes() const { return num_tiles * kTile; }
};

template <class M>
struct ManyRows {
  using V = typename M::V;
  using F = typename M::F;
  using Cell = typename M::Cell;
  using Matrix = typename F::Matrix;

  static int64_t tiles(int64_t rows) { return (rows + kTile - 1) / kTile; }
  static int64_t cells(int64_t k) { return M::padded(k) / M::kCell; }
  static size_t x_bytes(const PageShape& shape, int64_t rows) {
    return static_cast<size_t>(tiles(rows) * cells(shape.hidden) * kTile) * sizeof(Cell);
  }
  static size_t h_bytes(const PageShape& shape, int64_t rows, int64_t num_pages) {
    return static_cast<size_t>(tiles(rows) * num_pages * cells(shape.page_units) * kTile) * sizeof(Cell);
  }
  static size_t sums_bytes(int64_t rows) { return static_cast<size_t>(kMaxSums * tiles(rows) * kTile) * sizeof(float); }
  static size_t scratch_bytes(const PageShape&, int64_t rows) { return sums_bytes(rows) + M::kScratchBytes; }

  static void pack(const PageShape& shape, const RowBlock& block, const Activations& x, int64_t tile, int64_t begin,
                   int64_t end) {
    Cell* to = reinterpret_cast<Cell*>(block.x) + tile * cells(shape.hidden) * kTile;
    const int64_t until = end == shape.hidden ? M::padded(end) : end;
    const int64_t rows = block.num_rows - tile * kTile < kTile ? block.num_rows - tile * kTile : kTile;
    const int64_t* token = block.token + tile * kTile;
    alignas(64) float two[2][kTile] = {};
    for (int64_t k = begin; k < until; k += 2) {
      for (int64_t i = 0; i < 2; ++i) {
        for (int64_t lane = 0; lane < rows; ++lane) {
          two[i][lane] = k + i < end ? element(x, token[lane] * shape.hidden + k + i) : 0.0f;
        }
      }
      M::store_two(to, k, two);
    }
  }

  static void gate_up(const PageShape& shape, const RowBlock& block, int64_t page, int64_t begin, int64_t end,
                      char* scratch) {
    const Matrix gates = F::matrix(shape, block.pages[page], BlockKind::gate);
    const Matrix ups = F::matrix(shape, block.pages[page], BlockKind::up);
    Product<Matrix, Cell> product = on(block, scratch);
    product.num_matrices = 1;
    product.first = begin;
    product.num_rows = end - begin;
    product.num_k = shape.hidden;
    product.x = reinterpret_cast<const Cell*>(block.x);
    product.tile_step = cells(shape.hidden) * kTile;
    const float* gate = product.sums;
    product.matrices = &gates;
    product.next = address(ups, begin);
    zero_and_add(product);
    product.sums += M::kMaxUnits * product.lanes();
    product.matrices = &ups;
    product.next = end < shape.page_units ? address(gates, end) : nullptr;
    zero_and_add(product);
    activate_units(shape, block, page, begin, end, gate, product.sums);
  }

  static void down(const PageShape& shape, const RowBlock& block, int64_t begin, int64_t end, float* out,
                   const uint8_t* next, char* scratch) {
    Product<Matrix, Cell> product = on(block, scratch);
    product.first = begin;
    product.num_rows = end - begin;
    product.num_k = shape.page_units;
    product.x_step = cells(shape.page_units) * kTile;
    product.tile_step = block.num_pages * product.x_step;
    zero(product);
    for (int64_t page = 0; page < block.num_pages; page += M::kMatrices) {
      Matrix matrices[M::kMatrices];
      product.matrices = matrices;
      product.num_matrices = block.num_pages - page < M::kMatrices ? block.num_pages - page : M::kMatrices;
      for (int64_t i = 0; i < product.num_matrices; ++i) {
        matrices[i] = F::matrix(shape, block.pages[page + i], BlockKind::down);
      }
      const int64_t after = page + product.num_matrices;
      const uint8_t* following = after < block.num_pages ? block.pages[after] : next;
      product.next = following == nullptr ? nullptr : address(F::matrix(shape, following, BlockKind::down), begin);
      product.x = reinterpret_cast<const Cell*>(block.h) + page * product.x_step;
      M::add(product);
    }
    for (int64_t row = 0; row < block.num_rows; ++row) {
      float* to = out + block.token[row] * shape.hidden + begin;
      const float* from = product.sums + row;
      const float weight = block.weight[row];
      for (int64_t i = 0; i < end - begin; ++i) {
        to[i] += weight * from[i * product.lanes()];
      }
    }
  }

  static ExpertKernels kernels() {
    return {M::kMaxRows, kTile, M::kMaxUnits, M::kMaxOutputs, x_bytes, h_bytes, scratch_bytes, pack, gate_up, down};
  }

 private:
  static constexpr int64_t kMaxSums = 2 * M::kMaxUnits > M::kMaxOutputs ? 2 * M::kMaxUnits : M::kMaxOutputs;

  static Product<Matrix, Cell> on(const RowBlock& block, char* scratch) {
    Product<Matrix, Cell> product{};
    product.num_tiles = tiles(block.num_rows);
    product.sums = reinterpret_cast<float*>(scratch);
    product.scratch = scratch + sums_bytes(block.num_rows);
    return product;
  }
  static const char* address(const Matrix& matrix, int64_t i) {
    return static_cast<const char*>(F::address(F::row(matrix, i), 0));
  }
  static void zero(const Product<Matrix, Cell>& product) {
    __builtin_memset(product.sums, 0, static_cast<size_t>(product.num_rows * product.lanes()) * sizeof(float));
  }
  static void zero_and_add(const Product<Matrix, Cell>& product) {
    zero(product);
    M::add(product);
  }

  // h = act(gate) * up of units [begin, end), zero in the padding after the page's last one.
  static void activate_units(const PageShape& shape, const RowBlock& block, int64_t page, int64_t begin, int64_t end,
                             const float* gate, const float* up) {
    Cell* h = reinterpret_cast<Cell*>(block.h) + page * cells(shape.page_units) * kTile;
    const int64_t num_tiles = tiles(block.num_rows), lanes = num_tiles * kTile;
    const int64_t until = end == shape.page_units ? M::padded(end) : end;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      for (int64_t unit = begin; unit < until; unit += 2) {
        alignas(64) float two[2][kTile] = {};
        for (int64_t i = 0; i < 2 && unit + i < end; ++i) {
          const int64_t at = (unit - begin + i) * lanes + tile * kTile;
          for (int64_t lane = 0; lane < kTile; lane += V::kWidth) {
            V::store(two[i] + lane, activate<V>(shape.activation, V::load(gate + at + lane)) * V::load(up + at + lane));
          }
        }
        M::store_two(h + tile * block.num_pages * cells(shape.page_units) * kTile, unit, two);
      }
    }
  }
};

}  // namespace
}  // namespace moesaic
