// Our own threads, one pinned to each usable physical core, and asynchronous work in phases.
//
// Work is a list of phases; a phase is a number of chunks that may run in any order on any thread, and ends before
// the next begins. Every thread starts on a contiguous share of a phase's chunks, so that it reads memory in order and
// stays on its own node, and takes over what others have not begun when it is done: a thread that the system has
// put aside holds nobody up. What a chunk computes must therefore not depend on who runs it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace moesaic {

struct Phase {
  int64_t num_chunks = 0;
  std::function<void(int64_t chunk, int thread)> run;  // thread: 0 .. num_threads - 1
};

class Job;

class Pool {
 public:
  // One thread per entry, pinned to that logical processor where the system permits it.
  explicit Pool(const std::vector<int>& cores);
  ~Pool();  // ends what was submitted
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }

  // Starts work on `num_threads` threads (0: all) and returns at once. `kept` lives until the ticket is waited for, and
  // is let go by the thread that waits. Jobs start in order; one may start while the last of another still runs.
  int64_t submit(std::vector<Phase> phases, int num_threads = 0, std::shared_ptr<void> kept = nullptr);

  // Finished, failed or not. Throws std::invalid_argument for a ticket that is unknown or was waited for.
  bool done(int64_t ticket);

  // True when finished, after which the ticket is unknown; false after `timeout_s` (negative: none). Throws what the
  // work threw.
  bool wait(int64_t ticket, double timeout_s = -1);

  // Between these two (they nest) idle threads spin instead of sleeping.
  void step_begin();
  void step_end();

 private:
  void worker(int index);
  std::shared_ptr<Job> next_job(int64_t after, int index);
  std::shared_ptr<Job> find(int64_t ticket);
  void ring();

  std::vector<std::thread> threads_;
  std::mutex mutex_;                        // guards the three below
  std::deque<std::shared_ptr<Job>> queue_;  // unfinished, in order
  std::unordered_map<int64_t, std::shared_ptr<Job>> tickets_;
  int64_t last_ticket_ = 0;
  std::atomic<uint32_t> bell_{0};  // rung for every news; idle threads wait for it to change
  std::atomic<int> sleepers_{0};
  std::atomic<int> open_steps_{0};
  std::atomic<bool> stopping_{false};
};

// The process's pool, on usable_cores(); made when first asked for, anew in a forked child.
Pool& process_pool();

}  // namespace moesaic
