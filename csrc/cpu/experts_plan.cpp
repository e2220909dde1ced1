// Cuts grouped experts into row blocks, waves that fit the working memory, and chunks.
#include "experts_plan.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#include "quant.h"

namespace moesaic {
namespace {

constexpr int64_t kAlign = 64;
constexpr size_t kWaveBytes = size_t{96} << 20;  // activations of one wave: what is more runs as the next wave
constexpr int64_t kUnitGrain = 16;               // least units of a chunk: the wide dimension of every kernel's tile
constexpr int64_t kOutputGrain = 16;             // least rows of down of a chunk
constexpr int64_t kUnitChunks = 6;               // wanted per thread, so that the last to end ends soon after the first
constexpr int64_t kOutputChunks = 2;  // per thread; each visits every page, so fewer and longer runs are better

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Working memory that is kept for the next call: fresh pages from the system cost more than the work of a small call.
class Workspace {
 public:
  explicit Workspace(size_t bytes) {
    Spare& spare = Workspace::spare();
    {
      const std::lock_guard<std::mutex> lock(spare.mutex);
      for (Buffer& buffer : spare.buffers) {
        if (buffer.bytes >= bytes) {
          std::swap(buffer_, buffer);
          return;
        }
      }
    }
    buffer_.data.reset(static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
    if (!buffer_.data) {
      throw std::bad_alloc();
    }
    buffer_.bytes = bytes;
  }

  // The larger ones stay.
  ~Workspace() {
    Spare& spare = Workspace::spare();
    const std::lock_guard<std::mutex> lock(spare.mutex);
    Buffer& least = *std::min_element(spare.buffers.begin(), spare.buffers.end(),
                                      [](const Buffer& a, const Buffer& b) { return a.bytes < b.bytes; });
    if (least.bytes < buffer_.bytes) {
      std::swap(least, buffer_);
    }
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  char* data() const { return buffer_.data.get(); }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  struct Buffer {
    std::unique_ptr<char, Free> data;
    size_t bytes = 0;
  };
  struct Spare {
    std::mutex mutex;
    std::array<Buffer, 2> buffers;  // one call runs while the next is planned
  };
  static Spare& spare() {
    static Spare* const spare = new Spare;  // never destroyed: threads may end after static objects do
    return *spare;
  }

  Buffer buffer_;
};

struct Block {
  RowBlock rows;
  const ExpertKernels* kernels;
  size_t x_bytes, h_bytes;
};

struct PackChunk {
  int64_t block, tile, begin, end;
};

struct UnitChunk {
  int64_t block, page, begin, end;
};

// Blocks whose activations fit the working memory together.
struct Wave {
  std::vector<Block> blocks;
  std::vector<PackChunk> packs;
  std::vector<UnitChunk> units;
  int64_t output_step = 0;
  size_t bytes = 0;
};

struct Plan {
  ExpertCall call;
  std::vector<const uint8_t*> pages;
  std::vector<Wave> waves;
  size_t scratch_bytes = 0;  // a thread's
  size_t activation_bytes = 0;
  std::unique_ptr<Workspace> workspace;

  char* scratch(int thread) const {
    return workspace->data() + activation_bytes + static_cast<size_t>(thread) * scratch_bytes;
  }
};

Block make_block(const Plan& plan, const ExpertKernels& kernels, int64_t expert, int64_t begin, int64_t end) {
  const ExpertCall& call = plan.call;
  Block block{};
  block.rows.pages = plan.pages.data() + expert * call.num_pages;
  block.rows.num_pages = call.num_pages;
  block.rows.num_rows = end - begin;
  block.rows.token = call.token + begin;
  block.rows.weight = call.weight + begin;
  block.kernels = &kernels;
  block.x_bytes = aligned(kernels.x_bytes(call.shape, end - begin));
  block.h_bytes = aligned(kernels.h_bytes(call.shape, end - begin, call.num_pages));
  return block;
}

void add_waves(Plan& plan, const ExpertKernelPair& pair) {
  const ExpertCall& call = plan.call;
  for (int64_t expert = 0; expert < call.num_experts; ++expert) {
    const int64_t first = call.spans[2 * expert], stop = call.spans[2 * expert + 1];
    const ExpertKernels& kernels = stop - first <= pair.few.max_rows ? pair.few : pair.many;
    for (int64_t begin = first; begin < stop; begin += kernels.max_rows) {
      const Block block = make_block(plan, kernels, expert, begin, std::min(begin + kernels.max_rows, stop));
      const size_t bytes = block.x_bytes + block.h_bytes;
      if (plan.waves.empty() || plan.waves.back().bytes + bytes > kWaveBytes) {
        plan.waves.emplace_back();
      }
      plan.waves.back().blocks.push_back(block);
      plan.waves.back().bytes += bytes;
      plan.scratch_bytes =
          std::max(plan.scratch_bytes, aligned(kernels.scratch_bytes(call.shape, block.rows.num_rows)));
    }
  }
}

int64_t grains(int64_t count, int64_t parts, int64_t grain) {
  return std::max<int64_t>(1, (count + parts * grain - 1) / (parts * grain)) * grain;
}

void cut(Wave& wave, const PageShape& shape, int num_threads) {
  int64_t units = 0, outputs_at_most = shape.hidden + kOutputGrain;
  for (const Block& block : wave.blocks) {
    units += block.rows.num_pages * shape.page_units;
    outputs_at_most = std::min(outputs_at_most, block.kernels->max_outputs);
  }
  wave.output_step = std::min(outputs_at_most, grains(shape.hidden, num_threads * kOutputChunks, kOutputGrain));
  const int64_t wanted = grains(units, num_threads * kUnitChunks, kUnitGrain);
  for (size_t b = 0; b < wave.blocks.size(); ++b) {
    const Block& block = wave.blocks[b];
    const int64_t index = static_cast<int64_t>(b);
    const int64_t num_tiles = (block.rows.num_rows + block.kernels->tile_rows - 1) / block.kernels->tile_rows;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      for (int64_t k = 0; k < shape.hidden; k += kPackStep) {
        wave.packs.push_back({index, tile, k, std::min(k + kPackStep, shape.hidden)});
      }
    }
    const int64_t at_most = std::min(wanted, block.kernels->max_units);
    const int64_t step = grains(shape.page_units, (shape.page_units + at_most - 1) / at_most, kUnitGrain);
    for (int64_t page = 0; page < block.rows.num_pages; ++page) {
      for (int64_t unit = 0; unit < shape.page_units; unit += step) {
        wave.units.push_back({index, page, unit, std::min(unit + step, shape.page_units)});
      }
    }
  }
}

void place(Wave& wave, char* at) {
  for (Block& block : wave.blocks) {
    block.rows.x = at;
    block.rows.h = at + block.x_bytes;
    at += block.x_bytes + block.h_bytes;
  }
}

void add_phases(std::vector<Phase>& phases, const std::shared_ptr<Plan>& plan, const Wave& wave) {
  const PageShape& shape = plan->call.shape;
  phases.push_back({static_cast<int64_t>(wave.packs.size()), [plan, &wave, &shape](int64_t chunk, int) {
                      const PackChunk& c = wave.packs[static_cast<size_t>(chunk)];
                      const Block& block = wave.blocks[static_cast<size_t>(c.block)];
                      block.kernels->pack(shape, block.rows, plan->call.x, c.tile, c.begin, c.end);
                    }});
  phases.push_back({static_cast<int64_t>(wave.units.size()), [plan, &wave, &shape](int64_t chunk, int thread) {
                      const UnitChunk& c = wave.units[static_cast<size_t>(chunk)];
                      const Block& block = wave.blocks[static_cast<size_t>(c.block)];
                      block.kernels->gate_up(shape, block.rows, c.page, c.begin, c.end, plan->scratch(thread));
                    }});
  const int64_t output_chunks = (shape.hidden + wave.output_step - 1) / wave.output_step;
  phases.push_back({output_chunks, [plan, &wave, &shape](int64_t chunk, int thread) {
                      const int64_t begin = chunk * wave.output_step;
                      const int64_t end = std::min(begin + wave.output_step, shape.hidden);
                      for (size_t b = 0; b < wave.blocks.size(); ++b) {
                        const Block& block = wave.blocks[b];
                        const uint8_t* next = b + 1 < wave.blocks.size() ? wave.blocks[b + 1].rows.pages[0] : nullptr;
                        block.kernels->down(shape, block.rows, begin, end, plan->call.out, next, plan->scratch(thread));
                      }
                    }});
}

}  // namespace

const ExpertKernelPair& expert_kernels(WeightFormat format, WeightFormat x_format, Isa isa) {
  const ExpertKernelPair* found = nullptr;
#ifdef MOESAIC_X86
  if (isa >= Isa::amx) {
    found = expert_kernels_amx(format, x_format);
  }
  if (found == nullptr && isa >= Isa::avx512_bf16) {
    found = expert_kernels_avx512_bf16(format, x_format);
  }
  if (found == nullptr && isa >= Isa::avx512) {
    found = expert_kernels_avx512(format, x_format);
  }
  if (found == nullptr && isa >= Isa::avx2) {
    found = expert_kernels_avx2(format, x_format);
  }
#else
  static_cast<void>(isa);
#endif
  return found != nullptr ? *found : *expert_kernels_portable(format, x_format);
}

std::vector<Phase> plan_experts(const ExpertCall& call, Isa isa, int num_threads) {
  const auto plan = std::make_shared<Plan>();
  plan->call = call;
  plan->pages.reserve(static_cast<size_t>(call.num_experts * call.num_pages));
  for (int64_t i = 0; i < call.num_experts * call.num_pages; ++i) {
    plan->pages.push_back(call.slab + call.slots[i] * call.slot_bytes);
  }
  std::vector<Phase> phases;
  if (call.num_pages == 0 || call.shape.hidden == 0) {
    return phases;
  }
  const bool quantized = is_quantized(call.shape.format);
  add_waves(*plan, quantized ? quant_kernels(call.shape, isa) : expert_kernels(call.shape.format, call.x.format, isa));
  for (Wave& wave : plan->waves) {
    cut(wave, call.shape, num_threads);
    plan->activation_bytes = std::max(plan->activation_bytes, wave.bytes);
  }
  plan->workspace =
      std::make_unique<Workspace>(plan->activation_bytes + plan->scratch_bytes * static_cast<size_t>(num_threads));
  for (Wave& wave : plan->waves) {
    place(wave, plan->workspace->data());
    add_phases(phases, plan, wave);
  }
  return phases;
}

}  // namespace moesaic
