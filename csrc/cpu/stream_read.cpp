// Splits a buffer among threads and sums each part with the widest loads that the processor has.
#include "stream_read.h"

#include <algorithm>
#include <thread>
#include <vector>

namespace moesaic {
namespace {

constexpr size_t kPageWords = 4096 / sizeof(uint64_t);

uint64_t plain_sum(const uint64_t* words, size_t count) {
  uint64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    total += words[i];
  }
  return total;
}

StreamSum best_sum() {
#ifdef MOESAIC_X86
  if (__builtin_cpu_supports("avx512f")) {
    return stream_sum_avx512;
  }
  if (__builtin_cpu_supports("avx2")) {
    return stream_sum_avx2;
  }
#endif
  return plain_sum;
}

uint64_t part_sum(StreamSum sum, const uint64_t* words, size_t count) {
  const size_t misaligned = reinterpret_cast<uintptr_t>(words) % 64 / sizeof(uint64_t);
  const size_t head = std::min(count, misaligned == 0 ? 0 : 8 - misaligned);
  const size_t whole = (count - head) / kStreamWords * kStreamWords;
  return plain_sum(words, head) + sum(words + head, whole) + plain_sum(words + head + whole, count - head - whole);
}

}  // namespace

uint64_t stream_read(const uint64_t* words, size_t count, int num_threads) {
  const StreamSum sum = best_sum();
  // Parts are whole pages, so that no two threads' hardware prefetchers meet in one.
  const size_t pages = (count + kPageWords - 1) / kPageWords;
  const size_t threads = std::max<size_t>(1, std::min<size_t>(static_cast<size_t>(num_threads), pages));
  std::vector<uint64_t> sums(threads, 0);
  const auto run = [&](size_t thread) {
    const size_t begin = std::min(count, pages * thread / threads * kPageWords);
    const size_t end = std::min(count, pages * (thread + 1) / threads * kPageWords);
    sums[thread] = part_sum(sum, words + begin, end - begin);
  };
  std::vector<std::thread> others;
  others.reserve(threads - 1);
  for (size_t thread = 1; thread < threads; ++thread) {
    others.emplace_back(run, thread);
  }
  run(0);
  for (std::thread& other : others) {
    other.join();
  }
  return plain_sum(sums.data(), threads);
}

}  // namespace moesaic
