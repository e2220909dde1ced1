// The streaming sum with AVX2 loads. Includes no library header (see CMakeLists.txt).
//
// Four streams at once, each with its own prefetches: one stream leaves a core's outstanding misses partly unused.
#include <immintrin.h>

#include "stream_read.h"

namespace moesaic {
namespace {

constexpr size_t kStreams = 4;
constexpr size_t kStep = kStreamWords / kStreams;  // words of each stream per turn: two cache lines
constexpr size_t kAhead = 1024 / sizeof(uint64_t);
constexpr size_t kWide = sizeof(__m256i) / sizeof(uint64_t);

}  // namespace

uint64_t stream_sum_avx2(const uint64_t* words, size_t count) {
  const size_t part = count / kStreams;
  __m256i sums[kStreams] = {};
  for (size_t i = 0; i < part; i += kStep) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      const uint64_t* at = words + stream * part + i;
      __builtin_prefetch(at + kAhead);  // past the end it is harmless: a prefetch never faults
      __builtin_prefetch(at + kAhead + kStep / 2);
      for (size_t k = 0; k < kStep; k += kWide) {
        sums[stream] = _mm256_add_epi64(sums[stream], _mm256_load_si256(reinterpret_cast<const __m256i*>(at + k)));
      }
    }
  }
  const __m256i all = _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
  alignas(32) uint64_t lanes[kWide];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), all);
  uint64_t total = 0;
  for (const uint64_t lane : lanes) {
    total += lane;
  }
  return total;
}

}  // namespace moesaic
