// Activations as pairs of bf16, two neighbours of the input axis in a 32-bit cell: what products of bf16 pairs and
// tiles want. Needs AVX-512 with BF16. For inclusion in one file per instruction set.
#pragma once

#include <immintrin.h>

#include "experts_panel.h"
#include "vec_avx512.h"

namespace moesaic {
namespace {

struct Bf16Pairs {
  using V = Avx512;
  using F = Bf16<Avx512>;
  using Cell = uint32_t;
  using Lanes = __m512i;
  static constexpr int64_t kCell = 2;
  static constexpr int64_t kBlockK = 256;
  static constexpr int64_t kPadding = 32;  // elements: a tile's row

  static int64_t padded(int64_t k) { return round_up(k, kPadding); }
  static Lanes load(const Cell* p) { return _mm512_loadu_si512(p); }
  static Lanes broadcast(const Cell* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
  static __m512 fma(Lanes weight, Lanes x, __m512 sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(weight));
  }

  // Rounds to nearest; x that is bf16 stays what it is.
  static void store_two(Cell* cells, int64_t k, const float (&two)[2][kTile]) {
    const __m512i low = narrow(two[0]), high = narrow(two[1]);
    _mm512_storeu_si512(cells + k / 2 * kTile, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }

  static void widen(const F::Row& row, int64_t k, int64_t count, Cell* to) {
    const int64_t whole = count / kPadding * kPadding;
    for (int64_t i = 0; i < whole; i += kPadding) {
      _mm512_storeu_si512(to + i / 2, _mm512_loadu_si512(row + k + i));
    }
    if (whole < count) {
      const __mmask32 rest = (__mmask32{1} << (count - whole)) - 1;
      _mm512_storeu_si512(to + whole / 2, _mm512_maskz_loadu_epi16(rest, row + k + whole));
    }
  }

 private:
  static __m512i narrow(const float* values) {
    return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(values))));
  }
};

}  // namespace
}  // namespace moesaic
