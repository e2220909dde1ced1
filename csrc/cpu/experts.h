// Grouped experts: y = down(act(gate(x)) * up(x)) over paged weights, several experts in one call.
//
// Two phases. First every thread takes units: gate and up rows are dotted with the rows of x, and act(gate) * up goes
// to a buffer that all share. Then every thread takes rows of down, that is columns of the output, and sums them over
// all pages and experts in order. Each number is computed whole by one thread and in one order: the result does
// not depend on how many threads there are. Few rows (decode) are dotted with the weights as they stream by; many rows
// go through the caches in blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace moesaic {

enum class WeightFormat : int { fp32 = 0, bf16 = 1, fp16 = 2, int8 = 3, int4 = 4, fp8 = 5, mxfp4 = 6 };
enum class Activation : int { silu = 0, gelu = 1, relu = 2 };

constexpr int kNumWeightFormats = 7;

// What all pages of a call have in common. A page is gate rows [P, H], up rows [P, H], down columns [H, P].
struct PageShape {
  int64_t hidden;      // H
  int64_t page_units;  // P
  WeightFormat format;
  Activation activation;
  int64_t group = 0;         // int4: 32, 64 or 128 elements share a scale
  bool zero_points = false;  // int4: of each group
};

// Rows of x that go through one expert in one pass over its weights.
struct RowBlock {
  const uint8_t* const* pages;
  int64_t num_pages;
  int64_t num_rows;
  const int64_t* token;  // of each row: its row of x and of out
  const float* weight;   // of each row
  char* x;               // activations as the kernel wants them, x_bytes
  char* h;               // act(gate) * up of all pages' units, h_bytes
};

struct Activations {
  const void* data;  // [tokens, hidden]
  WeightFormat format;
};

// What one instruction set does for one weight format: `pack`, then `gate_up` on all units, then `down` on all rows of
// down. Within each the order is free. `scratch` is the calling thread's own. All pointers are 64-byte aligned, weights
// excepted.
struct ExpertKernels {
  int64_t max_rows;     // of a block
  int64_t tile_rows;    // rows that `pack` takes at once
  int64_t max_units;    // that gate_up takes at once
  int64_t max_outputs;  // that down takes at once
  size_t (*x_bytes)(const PageShape&, int64_t num_rows);
  size_t (*h_bytes)(const PageShape&, int64_t num_rows, int64_t num_pages);
  size_t (*scratch_bytes)(const PageShape&, int64_t num_rows);
  // Elements [begin, end) of the rows of tile `tile`; `begin` is a multiple of kPackStep, and `end` too or it is
  // hidden.
  void (*pack)(const PageShape&, const RowBlock&, const Activations&, int64_t tile, int64_t begin, int64_t end);
  // Units [begin, end) of one page.
  void (*gate_up)(const PageShape&, const RowBlock&, int64_t page, int64_t begin, int64_t end, char* scratch);
  // Adds rows [begin, end) of down, weighted, to out [tokens, hidden]. `next`: where reading will go on afterwards, or
  // null.
  void (*down)(const PageShape&, const RowBlock&, int64_t begin, int64_t end, float* out, const uint8_t* next,
               char* scratch);
};

constexpr int64_t kPackStep = 512;

// Few and many rows for one format. `few.max_rows` tells where the one ends and the other begins.
struct ExpertKernelPair {
  ExpertKernels few;
  ExpertKernels many;
};

// Null where that level has nothing of its own for the formats (or this is no x86-64): take the next lower one. The two
// highest take bf16 x only: what is wider or of another kind is never narrowed to it.
const ExpertKernelPair* expert_kernels_portable(WeightFormat format, WeightFormat x_format);  // never null
const ExpertKernelPair* expert_kernels_avx2(WeightFormat format, WeightFormat x_format);
const ExpertKernelPair* expert_kernels_avx512(WeightFormat format, WeightFormat x_format);
const ExpertKernelPair* quant_kernels_portable(const PageShape& shape);  // the same for the quantized formats
const ExpertKernelPair* quant_kernels_avx2(const PageShape& shape);
const ExpertKernelPair* quant_kernels_avx512(const PageShape& shape);
const ExpertKernelPair* expert_kernels_avx512_bf16(WeightFormat format, WeightFormat x_format);
const ExpertKernelPair* expert_kernels_amx(WeightFormat format, WeightFormat x_format);

}  // namespace moesaic
