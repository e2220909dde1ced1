// Threads that sleep on a futex, or spin while a step is open, and share out chunks by counters.
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <stdexcept>
#include <string>

#include "cores.h"

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSpinsBeforeSleep = 2000;  // some tens of microseconds: what a phase's last chunk may take longer

void pause_cpu() {
#ifdef MOESAIC_X86
  __builtin_ia32_pause();
#endif
}

// Sleeps while `word` is `value`; wakes for no reason at times. `limit` null: no time limit.
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, const timespec* limit = nullptr) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, limit, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void pin(int cpu) {
  const size_t size = static_cast<size_t>(cpu) + 1;
  cpu_set_t* set = CPU_ALLOC(size);
  const size_t bytes = CPU_ALLOC_SIZE(size);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  sched_setaffinity(0, bytes, set);  // where it is refused the thread floats, which is slower and not wrong
  CPU_FREE(set);
}

// One phase as it runs. `next` of each thread's share is on a cache line of its own.
struct RunningPhase {
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  Phase phase;
  std::vector<Share> shares;
  alignas(64) std::atomic<int64_t> left{0};  // chunks not finished
  std::atomic<uint32_t> over{0};

  RunningPhase(Phase what, int num_threads)
      : phase(std::move(what)), shares(static_cast<size_t>(num_threads)), left(phase.num_chunks) {
    for (int64_t i = 0; i < num_threads; ++i) {
      Share& share = shares[static_cast<size_t>(i)];
      share.next.store(phase.num_chunks * i / num_threads, std::memory_order_relaxed);
      share.end = phase.num_chunks * (i + 1) / num_threads;
    }
  }
};

}  // namespace

class Job {
 public:
  Job(int64_t ticket, std::vector<Phase> phases, int num_threads, std::shared_ptr<void> kept)
      : ticket(ticket), num_threads(num_threads), kept(std::move(kept)) {
    for (Phase& phase : phases) {
      if (phase.num_chunks > 0) {
        phases_.push_back(std::make_unique<RunningPhase>(std::move(phase), num_threads));
      }
    }
    finished_.store(phases_.empty() ? 1 : 0);
  }

  // A thread's part. Returns true to the one that ended the last chunk; it calls finish.
  bool run(int thread) {
    bool was_last = false;
    for (auto& phase : phases_) {
      was_last = run_phase(*phase, thread);
      if (&phase != &phases_.back()) {
        await(*phase);
      }
    }
    return was_last;
  }

  bool finished() const { return finished_.load(std::memory_order_acquire) != 0; }

  void finish() {
    finished_.store(1, std::memory_order_release);
    futex_wake_all(finished_);
  }

  bool wait_until(const Clock::time_point* deadline, const std::atomic<int>& open_steps) {
    for (int spins = 0; spins < kSpinsBeforeSleep && open_steps.load(std::memory_order_relaxed) > 0; ++spins) {
      if (finished()) {
        return true;
      }
      pause_cpu();
    }
    while (!finished()) {
      if (deadline == nullptr) {
        futex_wait(finished_, 0);
        continue;
      }
      const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(*deadline - Clock::now()).count();
      if (left <= 0) {
        return false;
      }
      const timespec limit{static_cast<time_t>(left / 1000000000), static_cast<long>(left % 1000000000)};
      futex_wait(finished_, 0, &limit);
    }
    return true;
  }

  // Of a finished job: what it threw, if anything.
  std::exception_ptr error() {
    const std::lock_guard<std::mutex> lock(error_mutex_);
    return error_;
  }

  const int64_t ticket;
  const int num_threads;
  std::shared_ptr<void> kept;

 private:
  bool run_phase(RunningPhase& running, int thread) {
    int64_t ran = 0;
    for (int i = 0; i < num_threads; ++i) {
      const int owner = thread + i < num_threads ? thread + i : thread + i - num_threads;
      RunningPhase::Share& share = running.shares[static_cast<size_t>(owner)];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const int64_t chunk = share.next.fetch_add(1, std::memory_order_relaxed);
        if (chunk >= share.end) {
          break;
        }
        run_chunk(running.phase, chunk, thread);
        ++ran;
      }
    }
    if (ran == 0 || running.left.fetch_sub(ran, std::memory_order_acq_rel) != ran) {
      return false;
    }
    running.over.store(1, std::memory_order_release);
    futex_wake_all(running.over);
    return true;
  }

  void run_chunk(const Phase& phase, int64_t chunk, int thread) {
    if (failed_.load(std::memory_order_relaxed)) {
      return;
    }
    try {
      phase.run(chunk, thread);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(error_mutex_);
      if (!error_) {
        error_ = std::current_exception();
      }
      failed_.store(true, std::memory_order_relaxed);
    }
  }

  static void await(RunningPhase& running) {
    for (int spins = 0; running.over.load(std::memory_order_acquire) == 0; ++spins) {
      if (spins < kSpinsBeforeSleep) {
        pause_cpu();
      } else {
        futex_wait(running.over, 0);
      }
    }
  }

  std::vector<std::unique_ptr<RunningPhase>> phases_;
  std::atomic<uint32_t> finished_{0};
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

Pool::Pool(const std::vector<int>& cores) {
  // Signals are for the threads that the program knows.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (size_t i = 0; i < cores.size(); ++i) {
    threads_.emplace_back([this, i, cpu = cores[i]] {
      pin(cpu);
      pthread_setname_np(pthread_self(), ("moesaic-" + std::to_string(i)).c_str());
      worker(static_cast<int>(i));
    });
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Pool::~Pool() {
  stopping_.store(true);
  ring();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

int64_t Pool::submit(std::vector<Phase> phases, int num_threads, std::shared_ptr<void> kept) {
  if (num_threads < 0 || num_threads > size()) {
    throw std::invalid_argument("num_threads is " + std::to_string(num_threads) + ", the pool has " +
                                std::to_string(size()));
  }
  int64_t ticket = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ticket = ++last_ticket_;
    auto job =
        std::make_shared<Job>(ticket, std::move(phases), num_threads == 0 ? size() : num_threads, std::move(kept));
    tickets_.emplace(ticket, job);
    if (!job->finished()) {
      queue_.push_back(std::move(job));
    }
  }
  ring();
  return ticket;
}

bool Pool::done(int64_t ticket) { return find(ticket)->finished(); }

bool Pool::wait(int64_t ticket, double timeout_s) {
  const std::shared_ptr<Job> job = find(ticket);
  const bool forever = timeout_s < 0 || timeout_s > 1e9;
  const Clock::time_point deadline =
      Clock::now() + std::chrono::nanoseconds(forever ? 0 : static_cast<int64_t>(timeout_s * 1e9));
  if (!job->wait_until(forever ? nullptr : &deadline, open_steps_)) {
    return false;
  }
  std::shared_ptr<void> kept;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (tickets_.erase(ticket) != 0) {
      kept = std::move(job->kept);
    }
  }
  if (const std::exception_ptr error = job->error()) {
    std::rethrow_exception(error);
  }
  return true;
}

void Pool::step_begin() {
  open_steps_.fetch_add(1);
  ring();
}

void Pool::step_end() {
  int open = open_steps_.load();
  do {
    if (open == 0) {
      throw std::logic_error("step_end without step_begin");
    }
  } while (!open_steps_.compare_exchange_weak(open, open - 1));
}

std::shared_ptr<Job> Pool::find(int64_t ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) {
    throw std::invalid_argument("no work with ticket " + std::to_string(ticket) + ": unknown, or waited for");
  }
  return found->second;
}

void Pool::ring() {
  bell_.fetch_add(1);
  if (sleepers_.load() > 0) {
    futex_wake_all(bell_);
  }
}

// The first unfinished job after ticket `after` that thread `index` has a part in.
std::shared_ptr<Job> Pool::next_job(int64_t after, int index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& job : queue_) {
    if (job->ticket > after && index < job->num_threads) {
      return job;
    }
  }
  return nullptr;
}

void Pool::worker(int index) {
  int64_t last = 0;
  while (true) {
    const uint32_t rung = bell_.load();
    if (const std::shared_ptr<Job> job = next_job(last, index)) {
      last = job->ticket;
      if (job->run(index)) {
        {
          const std::lock_guard<std::mutex> lock(mutex_);
          queue_.erase(std::find(queue_.begin(), queue_.end(), job));
        }
        job->finish();
      }
      continue;
    }
    if (stopping_.load()) {
      return;
    }
    while (bell_.load(std::memory_order_acquire) == rung && open_steps_.load(std::memory_order_relaxed) > 0) {
      pause_cpu();
    }
    sleepers_.fetch_add(1);
    futex_wait(bell_, rung);
    sleepers_.fetch_sub(1);
  }
}

namespace {

// The holder survives forks: a child has none of its parent's threads, so it leaves the parent's pool alone, for good.
struct ProcessPool {
  std::mutex mutex;
  std::unique_ptr<Pool> pool;

  ProcessPool() {
    pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                   [] {
                     static_cast<void>(instance().pool.release());
                     instance().mutex.unlock();
                   });
  }

  static ProcessPool& instance();
};

ProcessPool& ProcessPool::instance() {
  static ProcessPool holder;
  return holder;
}

}  // namespace

Pool& process_pool() {
  ProcessPool& holder = ProcessPool::instance();
  const std::lock_guard<std::mutex> lock(holder.mutex);
  if (!holder.pool) {
    holder.pool = std::make_unique<Pool>(usable_cores());
  }
  return *holder.pool;
}

}  // namespace moesaic
