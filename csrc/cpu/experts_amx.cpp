// Grouped experts with AMX: weights are the A operand, read in place; activations the B operand, packed. Few rows as
// with AVX-512. Includes no library header (see CMakeLists.txt).
//
// A strip is 16 or 32 rows of weights times 16 or 32 rows of x: its sums stay in tiles 0 to 3 while the input axis goes
// by, 32 elements a step, through all matrices of a product (pages of down).
#include <immintrin.h>

#include "experts.h"
#include "experts_few.h"
#include "experts_many.h"
#include "experts_pairs.h"

namespace moesaic {
namespace {

constexpr int64_t kStepK = 32;  // elements of a tile's row
constexpr int64_t kTileRows = 16;
constexpr int64_t kAheadSteps = 8;  // that weights are prefetched before they are used

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tiles hold nothing outside: a thread that keeps them in use makes every switch of threads dearer.
class Tiles {
 public:
  Tiles() {
    static const TileConfig config;
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

struct TileProducts : Bf16Pairs {
  using Matrix = F::Matrix;
  using P = Product<Matrix, Cell>;
  static constexpr int64_t kMaxRows = 256;
  static constexpr int64_t kMaxUnits = 128;
  static constexpr int64_t kMaxOutputs = 128;
  static constexpr int64_t kMatrices = 8;
  static constexpr int64_t kEdgeBytes = kTileRows * 64;
  static constexpr size_t kScratchBytes = 2 * kEdgeBytes;
  static constexpr int64_t kResidentBytes = 1 << 20;  // of x, in the second-level cache
  static constexpr int64_t kBlockSteps = 32;          // where x is larger

  static void add(const P& product) {
    const Tiles tiles;
    const int64_t steps = (product.num_k + kStepK - 1) / kStepK;
    const int64_t x_bytes = product.num_matrices * steps * kStepK * product.lanes() * 2;
    const int64_t block = product.num_matrices > 1 || x_bytes <= kResidentBytes ? steps : kBlockSteps;
    for (int64_t begin = 0; begin < steps; begin += block) {
      const int64_t end = begin + block < steps ? begin + block : steps;
      for (int64_t row = 0; row < product.num_rows; row += 2 * kTileRows) {
        const bool two_rows = row + kTileRows < product.num_rows;
        for (int64_t tile = 0; tile < product.num_tiles; tile += 2) {
          const bool two_tiles = tile + 1 < product.num_tiles;
          if (two_rows) {
            two_tiles ? strip<2, 2>(product, row, tile, begin, end) : strip<2, 1>(product, row, tile, begin, end);
          } else {
            two_tiles ? strip<1, 2>(product, row, tile, begin, end) : strip<1, 1>(product, row, tile, begin, end);
          }
        }
      }
    }
  }

 private:
  // Where the weights of a later step lie: of these rows while there are such steps, then of the rows that come next.
  struct Ahead {
    const P& product;
    int64_t row, begin, end;  // row of the product, steps of each matrix
    int64_t matrix, step;
    bool wrapped = false;

    void advance() {
      if (++step == end) {
        step = begin;
        if (++matrix == product.num_matrices) {
          matrix = 0;
          wrapped = true;
        }
      }
    }

    template <int A>
    void prefetch() const {
      const int64_t row_bytes = F::row_bytes(product.matrices[0]);
      const int64_t first = row + (wrapped ? 2 * kTileRows : 0);
      const char* at = nullptr;
      if (first < product.num_rows) {
        at = reinterpret_cast<const char*>(F::row(product.matrices[matrix], product.first + first) + step * kStepK);
      } else if (product.next != nullptr && matrix == 0) {
        at = product.next + step * kStepK * 2;
      } else {
        return;
      }
      for (int64_t i = 0; i < A * kTileRows; ++i) {
        __builtin_prefetch(at + i * row_bytes);
      }
    }
  };

  // Rows [row, row + 16 A) of the weights times tiles [tile, tile + B) of x, over steps [begin, end) of every matrix.
  template <int A, int B>
  static void strip(const P& product, int64_t row, int64_t tile, int64_t begin, int64_t end) {
    const int64_t stride = product.lanes() * 4;
    float* sums = product.sums + row * product.lanes() + tile * kTile;
    load_sums<A, B>(sums, product.lanes(), stride);
    Ahead ahead{product, row, begin, end, 0, begin};
    for (int64_t i = 0; i < kAheadSteps; ++i) {
      ahead.advance();
    }
    for (int64_t m = 0; m < product.num_matrices; ++m) {
      const Cell* x = product.x + m * product.x_step + tile * product.tile_step;
      for (int64_t step = begin; step < end; ++step) {
        if (tile == 0) {  // later tiles find the weights in cache
          ahead.template prefetch<A>();
          ahead.advance();
        }
        const Cell* cells = x + step * kStepK / 2 * kTile;
        _tile_loadd(6, cells, 64);
        if (B == 2) {
          _tile_loadd(7, cells + product.tile_step, 64);
        }
        load_weights<A>(product, m, row, step * kStepK);
        _tile_dpbf16ps(0, 4, 6);
        if (B == 2) {
          _tile_dpbf16ps(1, 4, 7);
        }
        if (A == 2) {
          _tile_dpbf16ps(2, 5, 6);
        }
        if (A == 2 && B == 2) {
          _tile_dpbf16ps(3, 5, 7);
        }
      }
    }
    store_sums<A, B>(sums, product.lanes(), stride);
  }

  template <int A>
  static void load_weights(const P& product, int64_t matrix, int64_t row, int64_t k) {
    const int64_t row_bytes = F::row_bytes(product.matrices[matrix]);
    const uint16_t* at = F::row(product.matrices[matrix], product.first + row) + k;
    if (row + A * kTileRows <= product.num_rows && k + kStepK <= product.num_k) {
      _tile_loadd(4, at, row_bytes);
      if (A == 2) {
        _tile_loadd(5, at + kTileRows * row_bytes / 2, row_bytes);
      }
      return;
    }
    uint32_t* edge = reinterpret_cast<uint32_t*>(product.scratch);
    copy_edge(product, matrix, row, k, edge);
    _tile_loadd(4, edge, 64);
    if (A == 2) {
      copy_edge(product, matrix, row + kTileRows, k, edge + kEdgeBytes / 4);
      _tile_loadd(5, edge + kEdgeBytes / 4, 64);
    }
  }

  // A tile that reaches over the matrix: zero there.
  static void copy_edge(const P& product, int64_t matrix, int64_t row, int64_t k, uint32_t* edge) {
    const int64_t count = product.num_k - k < kStepK ? product.num_k - k : kStepK;
    for (int64_t i = 0; i < kTileRows; ++i) {
      if (row + i < product.num_rows) {
        widen(F::row(product.matrices[matrix], product.first + row + i), k, count, edge + i * 16);
      } else {
        _mm512_storeu_si512(edge + i * 16, _mm512_setzero_si512());
      }
    }
  }

  template <int A, int B>
  static void load_sums(const float* sums, int64_t lanes, int64_t stride) {
    _tile_loadd(0, sums, stride);
    if (B == 2) {
      _tile_loadd(1, sums + kTile, stride);
    }
    if (A == 2) {
      _tile_loadd(2, sums + kTileRows * lanes, stride);
    }
    if (A == 2 && B == 2) {
      _tile_loadd(3, sums + kTileRows * lanes + kTile, stride);
    }
  }

  template <int A, int B>
  static void store_sums(float* sums, int64_t lanes, int64_t stride) {
    _tile_stored(0, sums, stride);
    if (B == 2) {
      _tile_stored(1, sums + kTile, stride);
    }
    if (A == 2) {
      _tile_stored(2, sums + kTileRows * lanes, stride);
    }
    if (A == 2 && B == 2) {
      _tile_stored(3, sums + kTileRows * lanes + kTile, stride);
    }
  }
};

}  // namespace

const ExpertKernelPair* expert_kernels_amx(WeightFormat format, WeightFormat x_format) {
  static const ExpertKernelPair pair{Bf16Rows<Avx512>::kernels(), ManyRows<TileProducts>::kernels()};
  return format == WeightFormat::bf16 && x_format == WeightFormat::bf16 ? &pair : nullptr;
}

}  // namespace moesaic
