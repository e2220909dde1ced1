// A call for grouped experts as phases of chunks for the pool.
#pragma once

#include <cstdint>
#include <vector>

#include "experts.h"
#include "pool.h"

namespace moesaic {

// One call: experts in ascending order, each with its rows and its pages. All of it stays in place until the work is
// done.
struct ExpertCall {
  PageShape shape;
  Activations x;
  const int64_t* token;  // of each row
  const float* weight;   // of each row
  const int64_t* spans;  // [experts, 2]: an expert's rows, begin and end
  const int64_t* slots;  // [experts, pages]
  int64_t num_experts;
  int64_t num_pages;
  const uint8_t* slab;
  int64_t slot_bytes;
  float* out;  // [tokens, hidden], added to
};

// The best kernels at or below `isa`.
const ExpertKernelPair& expert_kernels(WeightFormat format, WeightFormat x_format, Isa isa);

// The work for `num_threads` threads. Copies spans and slots; holds its working memory until the phases are destroyed.
std::vector<Phase> plan_experts(const ExpertCall& call, Isa isa, int num_threads);

}  // namespace moesaic
