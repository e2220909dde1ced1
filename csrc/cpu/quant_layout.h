// The bytes of quantized pages, as kernels/layout.py has them, and what the formats' loads share on all vectors.
//
// A quantized format F has, beside what experts_formats.h names,
//   kScale                Scale::row: every sum over a row is multiplied with row_scale(row). Scale::step: what a step
//                         adds is multiplied, lane by lane, with scale(row, k), or scale_part(row, k, n) where only n
//                         elements are left
// and its loads give codes as floats, still to be scaled. A step of a 4-bit format is eight codes a lane: lane i holds
// the 32-bit word i, and vector j its nibbles j, so that unpacking is a shift and no shuffle.
// For inclusion in one file per instruction set.
#pragma once

#include "experts.h"
#include "experts_formats.h"

namespace moesaic {
namespace {

constexpr int64_t kPartAlign = 64;
constexpr int64_t kFp8Tile = 128;
constexpr int64_t kMxfp4Group = 32;

struct QuantBlock {
  int64_t code_bytes;   // a row's codes
  int64_t scale_start;  // from the block's start
  int64_t scale_bytes;  // a row's scales, or those of a tile's rows
  int64_t zero_start;
  int64_t zero_bytes;  // 0: none
  int64_t num_bytes;
};

inline int64_t up(int64_t value, int64_t step) { return (value + step - 1) / step; }

inline QuantBlock quant_block(const PageShape& shape, int64_t rows, int64_t columns) {
  const bool nibbles = shape.format == WeightFormat::int4 || shape.format == WeightFormat::mxfp4;
  QuantBlock block{};
  block.code_bytes = nibbles ? up(columns, 2) : columns;
  block.scale_start = up(rows * block.code_bytes, kPartAlign) * kPartAlign;
  int64_t scale_rows = rows;
  switch (shape.format) {
    case WeightFormat::int8:
      block.scale_bytes = 4;
      break;
    case WeightFormat::int4:
      block.scale_bytes = 2 * up(columns, shape.group);
      break;
    case WeightFormat::fp8:
      block.scale_bytes = 4 * up(columns, kFp8Tile);
      scale_rows = up(rows, kFp8Tile);
      break;
    default:
      block.scale_bytes = up(columns, kMxfp4Group);
  }
  block.num_bytes = up(block.scale_start + scale_rows * block.scale_bytes, kPartAlign) * kPartAlign;
  if (shape.zero_points) {
    block.zero_start = block.num_bytes;
    block.zero_bytes = up(up(columns, shape.group), 2);
    block.num_bytes = up(block.zero_start + rows * block.zero_bytes, kPartAlign) * kPartAlign;
  }
  return block;
}

// Bytes of a whole page.
inline int64_t quant_page_bytes(const PageShape& shape) {
  return 2 * quant_block(shape, shape.page_units, shape.hidden).num_bytes +
         quant_block(shape, shape.hidden, shape.page_units).num_bytes;
}

struct QuantMatrix {
  const uint8_t* start;
  QuantBlock block;
  int64_t tile_rows;  // that share a row of scales
  int group_shift;    // log2 of int4's group
};

struct QuantRow {
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;
  int group_shift;
};

// What quantized formats share.
struct QuantFormat {
  using Matrix = QuantMatrix;
  using Row = QuantRow;
  static Matrix matrix(const PageShape& shape, const uint8_t* page, BlockKind kind) {
    const bool is_down = kind == BlockKind::down;
    const QuantBlock gate = quant_block(shape, shape.page_units, shape.hidden);
    const QuantBlock block = is_down ? quant_block(shape, shape.hidden, shape.page_units) : gate;
    return {page + static_cast<int>(kind) * gate.num_bytes, block, shape.format == WeightFormat::fp8 ? kFp8Tile : 1,
            shape.group == 32 ? 5 : (shape.group == 64 ? 6 : 7)};
  }
  static Row row(const Matrix& m, int64_t i) {
    const int64_t tile = m.tile_rows == 1 ? i : i / kFp8Tile;
    return {m.start + i * m.block.code_bytes, m.start + m.block.scale_start + tile * m.block.scale_bytes,
            m.start + m.block.zero_start + i * m.block.zero_bytes, m.group_shift};
  }
  static int64_t row_bytes(const Matrix& m) { return m.block.code_bytes; }
};

struct ByteFormat : QuantFormat {
  static const void* address(const Row& row, int64_t k) { return row.codes + k; }
};

struct NibbleFormat : QuantFormat {
  static const void* address(const Row& row, int64_t k) { return row.codes + k / 2; }
};

template <class T>
inline T read(const void* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

// Where a nibble format's step of eight vectors of `width` lanes has element k.
inline int64_t nibble_place(int64_t k, int64_t width) {
  const int64_t in_step = k % (8 * width);
  return k - in_step + (in_step % 8) * width + in_step / 8;
}

// The zero points of the groups that begin at or after `k`'s own and before `k + count`, four bits each, lowest first.
inline uint32_t zero_bits(const QuantRow& row, int64_t k, int64_t count) {
  const int64_t first = k >> row.group_shift, last = (k + count - 1) >> row.group_shift;
  uint32_t bits = row.zeros[first / 2];
  if (last / 2 > first / 2) {
    bits |= static_cast<uint32_t>(row.zeros[first / 2 + 1]) << 8;
  }
  return bits >> (4 * (first % 2));
}

}  // namespace
}  // namespace moesaic
