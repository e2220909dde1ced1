// Plain reading of a large host buffer at the speed of memory: the bound that CPU kernels are measured against.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moesaic {

// Reads `count` words with `num_threads` threads, each a contiguous part; returns their sum modulo 2^64, which makes
// the reading observable and does not depend on the number of threads. `words` is 8-byte aligned.
uint64_t stream_read(const uint64_t* words, size_t count, int num_threads);

// One thread's part: `count` is a multiple of kStreamWords, `words` 64-byte aligned.
using StreamSum = uint64_t (*)(const uint64_t* words, size_t count);

constexpr size_t kStreamWords = 64;  // 512 bytes: eight cache lines

uint64_t stream_sum_avx2(const uint64_t* words, size_t count);
uint64_t stream_sum_avx512(const uint64_t* words, size_t count);

}  // namespace moesaic
