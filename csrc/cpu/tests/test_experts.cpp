// Grouped experts of every instruction set against the formula in double: packers, shapes, rows, activations, threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "experts_plan.h"
#include "isa.h"
#include "pool.h"

namespace {

using moesaic::Activation;
using moesaic::Isa;
using moesaic::Pool;
using moesaic::WeightFormat;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint16_t to_bf16(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  return static_cast<uint16_t>(std::isnan(value) ? (word >> 16) | 0x40u : (word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

uint16_t to_fp16(float value) {  // of what these tests use: normal halves, subnormals cut to zero
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  const uint32_t sign = (word >> 16) & 0x8000u;
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | 0x7e00u);
  }
  const int exponent = static_cast<int>((word >> 23) & 0xffu) - 112;
  return static_cast<uint16_t>(exponent <= 0 ? sign
                                             : sign | static_cast<uint32_t>(exponent) << 10 | ((word >> 13) & 0x3ffu));
}

double from_fp16(uint16_t bits) {
  const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 31;
  return exponent == 0 ? sign * std::ldexp(bits & 0x3ffu, -24)
                       : sign * std::ldexp(1024 + (bits & 0x3ffu), exponent - 25);
}

size_t item_bytes(WeightFormat format) { return format == WeightFormat::fp32 ? 4 : 2; }

void put(WeightFormat format, uint8_t* at, float value) {
  const uint16_t half = format == WeightFormat::bf16 ? to_bf16(value) : to_fp16(value);
  std::memcpy(at, format == WeightFormat::fp32 ? static_cast<const void*>(&value) : &half, item_bytes(format));
}

double get(WeightFormat format, const uint8_t* at) {
  if (format == WeightFormat::fp16) {
    uint16_t half;
    std::memcpy(&half, at, sizeof half);
    return (half & 0x7c00u) == 0x7c00u ? kNan : from_fp16(half);
  }
  uint32_t word = 0;
  std::memcpy(format == WeightFormat::fp32 ? reinterpret_cast<uint8_t*>(&word) : reinterpret_cast<uint8_t*>(&word) + 2,
              at, item_bytes(format));
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// Experts, tokens and who goes where, with NaN in whatever must not be read.
struct Case {
  int64_t hidden, units, pages;
  WeightFormat format;
  Activation activation;
  std::vector<int64_t> counts;
  int64_t tokens = 0;
  size_t item;
  size_t slot_bytes;
  std::vector<uint8_t> slab, x;
  std::vector<int64_t> spans, slots, token;
  std::vector<float> weight;

  Case(int64_t h, int64_t p, int64_t n, WeightFormat f, Activation a, std::vector<int64_t> rows)
      : hidden(h), units(p), pages(n), format(f), activation(a), counts(std::move(rows)), item(item_bytes(f)) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    tokens = *std::max_element(counts.begin(), counts.end()) + 1;
    const int64_t experts = static_cast<int64_t>(counts.size());
    slot_bytes = (static_cast<size_t>(3 * units * hidden) * item + 63) / 64 * 64 + 64;
    slab.resize(static_cast<size_t>((experts + 1) * pages) * slot_bytes);
    for (size_t at = 0; at < slab.size(); at += item) {
      put(format, &slab[at], kNan);
    }
    x.resize(static_cast<size_t>(tokens * hidden) * item);
    for (size_t at = 0; at < x.size(); at += item) {
      put(format, &x[at], normal(random));
    }
    for (int64_t e = 0; e < experts; ++e) {
      spans.push_back(static_cast<int64_t>(token.size()));
      for (int64_t r = 0; r < counts[static_cast<size_t>(e)]; ++r) {
        token.push_back((r * 3 + e) % tokens);
        weight.push_back(0.5f + 0.1f * static_cast<float>(r % 7));
      }
      spans.push_back(static_cast<int64_t>(token.size()));
      for (int64_t p2 = 0; p2 < pages; ++p2) {
        const int64_t slot = (experts + 1) * pages - 1 - (e * pages + p2);
        slots.push_back(slot);
        for (int64_t i = 0; i < 3 * units * hidden; ++i) {
          put(format, &slab[static_cast<size_t>(slot) * slot_bytes + static_cast<size_t>(i) * item],
              normal(random) * (i < 2 * units * hidden ? 1.0f / std::sqrt(static_cast<float>(hidden)) : 0.3f));
        }
      }
    }
  }

  moesaic::ExpertCall call(std::vector<float>& out) const {
    moesaic::ExpertCall call{};
    call.shape.hidden = hidden;
    call.shape.page_units = units;
    call.shape.format = format;
    call.shape.activation = activation;
    call.x = {x.data(), format};
    call.token = token.data();
    call.weight = weight.data();
    call.spans = spans.data();
    call.slots = slots.data();
    call.num_experts = static_cast<int64_t>(counts.size());
    call.num_pages = pages;
    call.slab = slab.data();
    call.slot_bytes = static_cast<int64_t>(slot_bytes);
    call.out = out.data();
    return call;
  }

  std::vector<float> run(Pool& pool, Isa isa, int threads) const {
    std::vector<float> out(static_cast<size_t>(tokens * hidden), 1.0f);
    CHECK(pool.wait(pool.submit(moesaic::plan_experts(call(out), isa, threads), threads)));
    return out;
  }

  double act(double v) const {
    switch (activation) {
      case Activation::gelu:
        return v * 0.5 * std::erfc(-v * std::sqrt(0.5));
      case Activation::relu:
        return v > 0 || std::isnan(v) ? v : 0;
      default:
        return v / (1 + std::exp(-v));
    }
  }

  std::vector<double> expected() const {
    std::vector<double> out(static_cast<size_t>(tokens * hidden), 1.0);
    for (size_t e = 0; e < counts.size(); ++e) {
      for (int64_t row = spans[2 * e]; row < spans[2 * e + 1]; ++row) {
        add_row(e, row, out);
      }
    }
    return out;
  }

  void add_row(size_t e, int64_t row, std::vector<double>& out) const {
    const int64_t t = token[static_cast<size_t>(row)];
    const auto element = [&](const uint8_t* page, int64_t i) {
      return get(format, page + static_cast<size_t>(i) * item);
    };
    for (int64_t p = 0; p < pages; ++p) {
      const uint8_t* page =
          &slab[static_cast<size_t>(slots[e * static_cast<size_t>(pages) + static_cast<size_t>(p)]) * slot_bytes];
      for (int64_t u = 0; u < units; ++u) {
        double gate = 0, up = 0;
        for (int64_t k = 0; k < hidden; ++k) {
          const double in = element(x.data(), t * hidden + k);
          gate += element(page, u * hidden + k) * in;
          up += element(page, (units + u) * hidden + k) * in;
        }
        const double h = act(gate) * up * weight[static_cast<size_t>(row)];
        for (int64_t i = 0; i < hidden; ++i) {
          out[static_cast<size_t>(t * hidden + i)] += h * element(page, 2 * units * hidden + i * units + u);
        }
      }
    }
  }
};

double distance(const std::vector<float>& actual, const std::vector<double>& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

// Emulated above AVX-512 (see CMakeLists.txt), so tested wherever that is.
std::vector<Isa> levels() {
  std::vector<Isa> found;
  for (int i = 0; i < moesaic::kNumIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (std::min(isa, Isa::avx512) <= moesaic::best_isa()) {
      found.push_back(isa);
    }
  }
  return found;
}

void every_level_is_the_formula_whatever_the_threads(Pool& pool) {
  const std::vector<std::vector<int64_t>> rows = {{1}, {2, 0, 4}, {3, 5, 8}, {17, 1, 9}, {33, 6}, {64}};
  const int64_t shapes[][3] = {{32, 16, 3}, {20, 5, 2}, {17, 9, 1}, {129, 40, 2}, {64, 96, 1}, {1, 1, 1}};
  int turn = 0;
  for (const auto& counts : rows) {
    for (const auto& shape : shapes) {
      for (const WeightFormat format : {WeightFormat::fp32, WeightFormat::bf16, WeightFormat::fp16}) {
        const Case one(shape[0], shape[1], shape[2], format, static_cast<Activation>(turn++ % 3), counts);
        const std::vector<double> expected = one.expected();
        for (const Isa isa : levels()) {
          const std::vector<float> out = one.run(pool, isa, 1);
          const bool narrows = isa >= Isa::avx512_bf16 && format == WeightFormat::bf16;
          const double error = distance(out, expected);
          if (!(error <= (narrows ? 1e-2 : 2e-6))) {
            std::fprintf(stderr, "%s format %d shape %d %d %d rows %d: error %g\n", moesaic::isa_name(isa),
                         static_cast<int>(format), static_cast<int>(shape[0]), static_cast<int>(shape[1]),
                         static_cast<int>(shape[2]), static_cast<int>(counts[0]), error);
          }
          CHECK(error <= (narrows ? 1e-2 : 2e-6));
          CHECK(out == one.run(pool, isa, 3));
        }
      }
    }
  }
}

void long_inputs_and_several_waves_are_right(Pool& pool) {
  const Case many(300, 16, 2, WeightFormat::bf16, Activation::silu, {530, 40});  // more rows than a block takes
  const Case wide(1100, 32, 1, WeightFormat::bf16, Activation::silu, {40});
  for (const Case* one : {&many, &wide}) {
    const std::vector<double> expected = one->expected();
    for (const Isa isa : levels()) {
      CHECK(distance(one->run(pool, isa, 2), expected) <= 1e-2);
    }
  }
}

void a_broken_row_leaves_the_others_bit_identical(Pool& pool) {
  for (const WeightFormat format : {WeightFormat::fp32, WeightFormat::bf16}) {
    for (const int64_t rows : {3, 20}) {
      const Case whole(40, 16, 2, format, Activation::silu, {rows});
      Case broken = whole;
      put(format, &broken.x[static_cast<size_t>(broken.token[1] * 40 + 3) * broken.item], kNan);
      for (const Isa isa : levels()) {
        const std::vector<float> right = whole.run(pool, isa, 1), actual = broken.run(pool, isa, 1);
        for (size_t i = 0; i < right.size(); ++i) {
          const bool hit = static_cast<int64_t>(i) / 40 == broken.token[1];
          CHECK(hit ? std::isnan(actual[i]) : actual[i] == right[i]);
        }
      }
    }
  }
}

// Packed in pieces, in any order, a row is whole, and zero where it is padded.
void packers_fill_all_that_kernels_read(Pool&) {
  for (const int64_t hidden : {1, 31, 512, 1100}) {
    for (const int64_t rows : {1, 5, 16, 23}) {
      const Case one(hidden, 1, 1, WeightFormat::bf16, Activation::relu, {rows});
      std::vector<float> out(one.x.size());
      for (const Isa isa : levels()) {
        const moesaic::ExpertKernelPair& pair = moesaic::expert_kernels(WeightFormat::bf16, WeightFormat::bf16, isa);
        for (const moesaic::ExpertKernels* kernels : {&pair.few, &pair.many}) {
          const moesaic::ExpertCall call = one.call(out);
          moesaic::RowBlock block{};
          block.num_rows = std::min(rows, kernels->max_rows);
          block.token = one.token.data();
          std::vector<uint32_t> packed(kernels->x_bytes(call.shape, block.num_rows) / 4, 0x7fc07fc0u);
          block.x = reinterpret_cast<char*>(packed.data());
          double expected = 0, actual = 0;
          for (int64_t tile = (block.num_rows - 1) / kernels->tile_rows; tile >= 0; --tile) {
            for (int64_t begin = (hidden - 1) / moesaic::kPackStep * moesaic::kPackStep; begin >= 0;
                 begin -= moesaic::kPackStep) {
              kernels->pack(call.shape, block, call.x, tile, begin, std::min(begin + moesaic::kPackStep, hidden));
            }
          }
          for (int64_t row = 0; row < block.num_rows; ++row) {
            for (int64_t k = 0; k < hidden; ++k) {
              expected += get(one.format, &one.x[static_cast<size_t>(block.token[row] * hidden + k) * 2]);
            }
          }
          const bool halves = isa >= Isa::avx512_bf16 || kernels == &pair.few;  // else floats
          for (const uint32_t& cell : packed) {
            const auto* bytes = reinterpret_cast<const uint8_t*>(&cell);
            actual += halves ? get(WeightFormat::bf16, bytes) + get(WeightFormat::bf16, bytes + 2)
                             : get(WeightFormat::fp32, bytes);
          }
          CHECK(std::abs(actual - expected) <= 1e-9 * static_cast<double>(rows * hidden));
        }
      }
    }
  }
}

}  // namespace

int main() {
  Pool pool({0, 0, 0});
  packers_fill_all_that_kernels_read(pool);
  every_level_is_the_formula_whatever_the_threads(pool);
  long_inputs_and_several_waves_are_right(pool);
  a_broken_row_leaves_the_others_bit_identical(pool);
  return 0;
}
