// Grouped experts in the quantized formats: every instruction set against the formula in double, on pages behind which
// no memory may be read.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "experts_plan.h"
#include "isa.h"
#include "pool.h"
#include "quant.h"
#include "quant_layout.h"

namespace {

using moesaic::BlockKind;
using moesaic::PageShape;
using moesaic::WeightFormat;

// Zeros that end where memory ends: a read behind them is a fault.
class Fenced {
 public:
  explicit Fenced(size_t bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (bytes + page - 1) / page * page;
    bytes_ = inside + page;
    start_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start_ != MAP_FAILED);
    CHECK(mprotect(static_cast<uint8_t*>(start_) + inside, page, PROT_NONE) == 0);
    data_ = static_cast<uint8_t*>(start_) + inside - bytes;
  }
  ~Fenced() { munmap(start_, bytes_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  uint8_t* get() const { return data_; }

 private:
  void* start_;
  size_t bytes_;
  uint8_t* data_;
};

struct Matrix {
  int64_t rows, columns;
  std::vector<double> values;
};

double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code < 128 ? size : -size;
}

double e2m1(int code) {
  constexpr double kSizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code < 8 ? kSizes[code] : -kSizes[code - 8];
}

// Fills a block of zeros with random codes, and with scales that give weights of about 0.1; returns the weights.
Matrix fill(const PageShape& shape, uint8_t* page, BlockKind kind, std::mt19937& random) {
  const moesaic::QuantMatrix m = moesaic::QuantFormat::matrix(shape, page, kind);
  const bool is_down = kind == BlockKind::down;
  Matrix made{is_down ? shape.hidden : shape.page_units, is_down ? shape.page_units : shape.hidden, {}};
  uint8_t* block = page + (m.start - page);
  for (int64_t row = 0; row < made.rows; ++row) {
    const moesaic::QuantRow r = moesaic::QuantFormat::row(m, row);
    uint8_t* codes = block + (r.codes - block);
    uint8_t* scales = block + (r.scales - block);
    uint8_t* zeros = block + (r.zeros - block);
    for (int64_t k = 0; k < made.columns; ++k) {
      const int code = static_cast<int>(random() % 256);
      switch (shape.format) {
        case WeightFormat::int8: {
          const float of_row = 0.001f * static_cast<float>(1 + row % 7);
          codes[k] = static_cast<uint8_t>(code);
          std::memcpy(scales, &of_row, 4);
          made.values.push_back(of_row * static_cast<double>(static_cast<int8_t>(code)));
          break;
        }
        case WeightFormat::fp8: {
          const float of_tile = 0.001f * static_cast<float>(1 + row / 128 + k / 128);
          codes[k] = static_cast<uint8_t>(code % 128 == 127 ? 0 : code);  // but NaN
          std::memcpy(scales + k / 128 * 4, &of_tile, 4);
          made.values.push_back(of_tile * e4m3(codes[k]));
          break;
        }
        case WeightFormat::mxfp4: {
          const int power = 120 + static_cast<int>((row + k / 32) % 5);
          codes[k / 2] = static_cast<uint8_t>(codes[k / 2] | (code & 15) << (k % 2 * 4));
          scales[k / 32] = static_cast<uint8_t>(power);
          made.values.push_back(std::ldexp(e2m1(code & 15), power - 127));
          break;
        }
        default: {
          const int64_t group = k / shape.group;
          const uint16_t half = static_cast<uint16_t>(0x2000 + 0x80 * ((row + group) % 9));  // from 2^-7 on
          const int zero = shape.zero_points ? static_cast<int>((3 * row + group) % 16) : 8;
          codes[k / 2] = static_cast<uint8_t>(codes[k / 2] | (code & 15) << (k % 2 * 4));
          std::memcpy(scales + 2 * group, &half, 2);
          if (shape.zero_points && k % shape.group == 0) {
            zeros[group / 2] = static_cast<uint8_t>(zeros[group / 2] | zero << (group % 2 * 4));
          }
          const double step = std::ldexp(1024 + (half & 0x3ff), (half >> 10) - 25);
          made.values.push_back(step * ((code & 15) - zero));
        }
      }
    }
  }
  return made;
}

double dot(const Matrix& m, int64_t row, const double* x) {
  double sum = 0;
  for (int64_t k = 0; k < m.columns; ++k) {
    sum += m.values[static_cast<size_t>(row * m.columns + k)] * x[k];
  }
  return sum;
}

void test_shape(int64_t format, int64_t hidden, int64_t units, int64_t num_rows) {
  PageShape shape{hidden, units, WeightFormat::fp32, moesaic::Activation::relu};
  CHECK(moesaic::set_format(format, shape));
  CHECK(moesaic::is_quantized(shape.format));
  std::mt19937 random(static_cast<uint32_t>(format * 1000 + hidden + units));
  const size_t bytes = static_cast<size_t>(moesaic::page_bytes(shape));
  CHECK(bytes % 64 == 0);
  const Fenced page(bytes);
  const Matrix gate = fill(shape, page.get(), BlockKind::gate, random);
  const Matrix up = fill(shape, page.get(), BlockKind::up, random);
  const Matrix down = fill(shape, page.get(), BlockKind::down, random);

  std::vector<float> x(static_cast<size_t>(num_rows * hidden)), weight(static_cast<size_t>(num_rows), 0.5f);
  std::vector<int64_t> token(static_cast<size_t>(num_rows));
  std::vector<double> expected;
  double largest = 0;
  for (int64_t r = 0; r < num_rows; ++r) {
    token[static_cast<size_t>(r)] = r;
    std::vector<double> row, h;
    for (int64_t k = 0; k < hidden; ++k) {
      x[static_cast<size_t>(r * hidden + k)] = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 1000.0f;
      row.push_back(x[static_cast<size_t>(r * hidden + k)]);
    }
    for (int64_t u = 0; u < units; ++u) {
      h.push_back(std::fmax(dot(gate, u, row.data()), 0.0) * dot(up, u, row.data()));
    }
    for (int64_t i = 0; i < hidden; ++i) {
      expected.push_back(0.5 * dot(down, i, h.data()));
      largest = std::fmax(largest, std::fabs(expected.back()));
    }
  }
  const int64_t spans[] = {0, num_rows}, slots[] = {0};
  for (int isa = 0; isa <= static_cast<int>(moesaic::best_isa()); ++isa) {
    std::vector<float> out(x.size(), 0.0f);
    moesaic::ExpertCall call{};
    call.shape = shape;
    call.x = {x.data(), WeightFormat::fp32};
    call.token = token.data(), call.weight = weight.data(), call.spans = spans, call.slots = slots;
    call.num_experts = 1, call.num_pages = 1;
    call.slab = page.get(), call.slot_bytes = static_cast<int64_t>(bytes), call.out = out.data();
    moesaic::Pool& pool = moesaic::process_pool();
    const int64_t ticket = pool.submit(moesaic::plan_experts(call, static_cast<moesaic::Isa>(isa), pool.size()));
    CHECK(pool.wait(ticket));
    for (size_t i = 0; i < out.size(); ++i) {
      CHECK(std::fabs(out[i] - expected[i]) <= 2e-5 * largest + 1e-9);
    }
  }
}

void test_numbers() {
  PageShape shape{1, 1, WeightFormat::fp32, moesaic::Activation::silu};
  CHECK(!moesaic::set_format(-1, shape) && !moesaic::set_format(moesaic::kNumFormatNumbers, shape));
  CHECK(moesaic::set_format(8, shape) && shape.format == WeightFormat::int4 && shape.group == 64 && shape.zero_points);
}

}  // namespace

int main() {
  test_numbers();
  for (int64_t format = 3; format < moesaic::kNumFormatNumbers; ++format) {
    for (const int64_t hidden : {1, 33, 127, 128, 300}) {
      for (const int64_t units : {1, 31, 96, 127, 128, 262}) {
        for (const int64_t rows : {1, 3, 8, 19}) {
          test_shape(format, hidden, units, rows);
        }
      }
    }
  }
  return 0;
}
