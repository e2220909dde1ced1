// Prefetching for attention's tasks; included by attention_span.h, internal linkage as there.
#pragma once

#include <cstdint>

namespace moesaic {
namespace {

// Asks for memory some way ahead of its use, as much as was used since. The task reads head by head, in strides. The
// processor's own prefetchers want sequences, and several at once, for each ends at a page: four lanes, each a quarter
// of a part.
class Feed {
 public:
  static constexpr int kLanes = 4;

  // `row_bytes`: of all the task's heads; the first lane begins at row `first`.
  Feed(const char* const* rows, int64_t num_rows, int64_t row_bytes, int64_t lane_rows, int64_t first)
      : rows_(rows), num_rows_(num_rows), row_bytes_(row_bytes), lane_rows_(lane_rows), first_(first) {
    aim();
  }

  __attribute__((always_inline)) void advance(int64_t bytes) {
    for (owed_ += bytes; owed_ >= 64 * kLanes; owed_ -= 64 * kLanes) {
#pragma GCC unroll 4
      for (int lane = 0; lane < kLanes; ++lane) {
        __builtin_prefetch(lanes_[lane] + at_, 0, 2);
      }
      at_ += 64;
      if (at_ >= row_bytes_) {
        next();
      }
    }
  }

 private:
  __attribute__((noinline)) void next() {
    at_ = 0;
    if (++row_ == lane_rows_) {
      row_ = 0;
      first_ += kLanes * lane_rows_;
    }
    aim();
  }

  void aim() {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t row = first_ + row_ + lane * lane_rows_;
      lanes_[lane] = rows_[row < num_rows_ ? row : num_rows_ - 1];
    }
  }

  const char* lanes_[kLanes];
  int64_t at_ = 0, owed_ = 0;
  const char* const* const rows_;
  const int64_t num_rows_;
  const int64_t row_bytes_;
  const int64_t lane_rows_;
  int64_t first_;
  int64_t row_ = 0;
};

}  // namespace
}  // namespace moesaic
