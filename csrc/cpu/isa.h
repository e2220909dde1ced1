// Which instruction sets the processor and the operating system offer, as levels that include all below them.
#pragma once

namespace moesaic {

enum class Isa : int {
  portable = 0,     // what the compiler's baseline has
  avx2 = 1,         // + FMA, F16C
  avx512 = 2,       // F, BW, DQ, VL
  avx512_bf16 = 3,  // products of bf16 pairs
  amx = 4,          // tile products of bf16; the kernel's permission is asked for
};

constexpr int kNumIsas = 5;

// The highest level that runs here; asks once. Never executes what it asks about.
Isa best_isa();

// best_isa, but no higher than `max`.
Isa best_isa_up_to(Isa max);

const char* isa_name(Isa isa);

}  // namespace moesaic
