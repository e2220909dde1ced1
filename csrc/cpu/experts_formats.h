// The float weight formats on the vectors of any instruction set V: how a row of a block becomes float vectors.
//
// A format F gives, for L = V::kWidth lanes:
//   kVectors, kStep       a step is kStep = kVectors * L elements, loaded as kVectors vectors
//   Matrix, matrix(...)   a block of a page: gate, up (P rows of H) or down (H rows of P)
//   Row, row(matrix, i)
//   load(row, k, out)     the step at element k, a multiple of kStep, all within the row
//   load_part(row, k, n, out)  the same where only n < kStep elements are left: the rest is zero
//   address(row, k)       for prefetching
//   place(k)              where element k of the input comes in the order that `load` gives: activations are packed
//                         in that order, so that a load needs no shuffle
// For inclusion in one file per instruction set.
#pragma once

#include "experts.h"

namespace moesaic {
namespace {

enum class BlockKind { gate, up, down };

// What is still to be multiplied with what a format's load gives (quant_layout.h).
enum class Scale { none, row, step };

template <class T>
struct PlainMatrix {
  const T* data;
  int64_t columns;
};

template <class T>
inline PlainMatrix<T> plain_matrix(const PageShape& shape, const uint8_t* page, BlockKind kind) {
  const int64_t block = shape.hidden * shape.page_units * static_cast<int64_t>(sizeof(T));
  return {reinterpret_cast<const T*>(page + static_cast<int>(kind) * block),
          kind == BlockKind::down ? shape.page_units : shape.hidden};
}

// What formats of plain elements share.
template <class T>
struct PlainFormat {
  static constexpr Scale kScale = Scale::none;
  using Matrix = PlainMatrix<T>;
  using Row = const T*;
  static Matrix matrix(const PageShape& shape, const uint8_t* page, BlockKind kind) {
    return plain_matrix<T>(shape, page, kind);
  }
  static Row row(const Matrix& m, int64_t i) { return m.data + i * m.columns; }
  static const void* address(Row row, int64_t k) { return row + k; }
  static int64_t row_bytes(const Matrix& m) { return m.columns * static_cast<int64_t>(sizeof(T)); }
};

template <class V>
struct Fp32 : PlainFormat<float> {
  static constexpr int kVectors = 1;
  static constexpr int64_t kStep = V::kWidth;
  static void load(Row row, int64_t k, typename V::F out[]) { out[0] = V::load(row + k); }
  static void load_part(Row row, int64_t k, int64_t count, typename V::F out[]) {
    alignas(64) float rest[kStep] = {};
    __builtin_memcpy(rest, row + k, static_cast<size_t>(count) * sizeof(float));
    load(rest, 0, out);
  }
  static int64_t place(int64_t k) { return k; }
};

// Two elements are one 32-bit word: the odd ones are floats already but for the lower half, the even ones one shift
// away.
template <class V>
struct Bf16 : PlainFormat<uint16_t> {
  static constexpr int kVectors = 2;
  static constexpr int64_t kStep = 2 * V::kWidth;
  static void load(Row row, int64_t k, typename V::F out[]) { V::load_bf16_pairs(row + k, out[0], out[1]); }
  static void load_part(Row row, int64_t k, int64_t count, typename V::F out[]) {
    alignas(64) uint16_t rest[kStep] = {};
    __builtin_memcpy(rest, row + k, static_cast<size_t>(count) * sizeof(uint16_t));
    load(rest, 0, out);
  }
  static int64_t place(int64_t k) {
    const int64_t in_step = k % kStep;
    return k - in_step + (in_step % 2) * V::kWidth + in_step / 2;
  }
};

template <class V>
struct Fp16 : PlainFormat<uint16_t> {
  static constexpr int kVectors = 1;
  static constexpr int64_t kStep = V::kWidth;
  static void load(Row row, int64_t k, typename V::F out[]) { out[0] = V::load_fp16(row + k); }
  static void load_part(Row row, int64_t k, int64_t count, typename V::F out[]) {
    alignas(64) uint16_t rest[kStep] = {};
    __builtin_memcpy(rest, row + k, static_cast<size_t>(count) * sizeof(uint16_t));
    load(rest, 0, out);
  }
  static int64_t place(int64_t k) { return k; }
};

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// One element of x as a float.
inline float element(const Activations& x, int64_t index) {
  if (x.format == WeightFormat::fp32) {
    return static_cast<const float*>(x.data)[index];
  }
  const uint32_t bits = static_cast<const uint16_t*>(x.data)[index];
  uint32_t wide = bits << 16;
  float f;
  if (x.format == WeightFormat::bf16) {
    __builtin_memcpy(&f, &wide, sizeof f);
    return f;
  }
  // fp16: with its exponent in place it is 2^112 too small, subnormals included; infinity and NaN are set by hand.
  wide = (bits & 0x7fffu) << 13;
  __builtin_memcpy(&f, &wide, sizeof f);
  f *= 0x1p112f;
  __builtin_memcpy(&wide, &f, sizeof f);
  wide |= (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
  wide |= (bits & 0x8000u) << 16;
  __builtin_memcpy(&f, &wide, sizeof f);
  return f;
}

}  // namespace
}  // namespace moesaic
