// Asks CPUID for the instructions, XCR0 for the registers that the system saves, and the kernel for the tiles.
#include "isa.h"

#include <algorithm>

#ifdef MOESAIC_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace moesaic {
namespace {

#ifdef MOESAIC_X86
struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Leaf leaf(unsigned number, unsigned sub = 0) {
  Leaf found;
  if (__get_cpuid_count(number, sub, &found.a, &found.b, &found.c, &found.d) == 0) {
    return Leaf{};
  }
  return found;
}

bool bit(unsigned word, int index) { return ((word >> index) & 1u) != 0; }

// Which register files the operating system saves; 0 where XGETBV itself is not offered.
unsigned long long saved_state(const Leaf& features) {
  if (!bit(features.c, 27)) {  // OSXSAVE
    return 0;
  }
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<unsigned long long>(high) << 32) | low;
}

// Linux gives a process the tiles' 8 KiB of state on demand only. Asked once, it holds for every thread.
bool tiles_permitted() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Isa detect() {
  const Leaf features = leaf(1), extended = leaf(7), more = leaf(7, 1);
  const unsigned long long saved = saved_state(features);
  constexpr unsigned long long kAvxState = 0x6, kAvx512State = 0xe6, kTileState = 0x60000;
  const bool avx2 = (saved & kAvxState) == kAvxState && bit(features.c, 28) && bit(features.c, 12) &&
                    bit(features.c, 29) && bit(extended.b, 5);  // AVX, FMA, F16C, AVX2
  if (!avx2) {
    return Isa::portable;
  }
  const bool avx512 = (saved & kAvx512State) == kAvx512State && bit(extended.b, 16) && bit(extended.b, 17) &&
                      bit(extended.b, 30) && bit(extended.b, 31);  // F, DQ, BW, VL
  if (!avx512) {
    return Isa::avx2;
  }
  if (!bit(more.a, 5)) {
    return Isa::avx512;
  }
  const bool tiles = (saved & kTileState) == kTileState && bit(extended.d, 24) && bit(extended.d, 22);  // TILE, BF16
  return tiles && tiles_permitted() ? Isa::amx : Isa::avx512_bf16;
}
#else
Isa detect() { return Isa::portable; }
#endif

}  // namespace

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

Isa best_isa_up_to(Isa max) { return std::min(best_isa(), max); }

const char* isa_name(Isa isa) {
  static const char* const names[kNumIsas] = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
  return names[static_cast<int>(isa)];
}

}  // namespace moesaic
