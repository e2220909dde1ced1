// The pool: every chunk once, phases in order, tickets, time limits, failures, steps, forks, many callers.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "pool.h"

#if defined(__SANITIZE_THREAD__)
constexpr bool kForks = false;  // a thread sanitizer does not follow a child that starts threads
#else
constexpr bool kForks = true;
#endif

namespace {

using moesaic::Phase;
using moesaic::Pool;

std::vector<int> cores(int count) { return std::vector<int>(static_cast<size_t>(count), 0); }

void every_chunk_runs_once_and_phases_follow_each_other() {
  for (const int threads : {1, 2, 3, 8}) {
    Pool pool(cores(threads));
    for (const int64_t chunks : {0, 1, 2, 7, 100}) {
      std::vector<std::atomic<int>> first(static_cast<size_t>(chunks)), second(static_cast<size_t>(chunks));
      std::atomic<bool> early{false};
      const int64_t ticket = pool.submit({{chunks, [&](int64_t i, int) { ++first[static_cast<size_t>(i)]; }},
                                          {0, nullptr},
                                          {chunks, [&](int64_t i, int thread) {
                                             CHECK(0 <= thread && thread < threads);
                                             for (auto& count : first) {
                                               early = early || count != 1;
                                             }
                                             ++second[static_cast<size_t>(i)];
                                           }}});
      CHECK(pool.wait(ticket));
      CHECK(!early);
      for (auto& count : second) {
        CHECK(count == 1);
      }
    }
  }
}

void fewer_threads_may_be_asked_for() {
  Pool pool(cores(4));
  std::atomic<int> highest{0};
  pool.wait(pool.submit({{1000,
                          [&](int64_t, int thread) {
                            int seen = highest;
                            while (thread > seen && !highest.compare_exchange_weak(seen, thread)) {
                            }
                          }}},
                        2));
  CHECK(highest <= 1);
  CHECK_THROWS(pool.submit({}, 5), std::invalid_argument);
  CHECK_THROWS(pool.submit({}, -1), std::invalid_argument);
}

void tickets_are_waited_for_once_and_time_out() {
  Pool pool(cores(2));
  std::atomic<bool> open{false};
  const int64_t ticket = pool.submit({{2, [&](int64_t, int) {
                                         while (!open) {
                                           std::this_thread::yield();
                                         }
                                       }}});
  const int64_t behind = pool.submit({{1, [](int64_t, int) {}}});
  CHECK(!pool.done(ticket));
  CHECK(!pool.wait(ticket, 0));
  CHECK(!pool.wait(behind, 0.01));
  open = true;
  CHECK(pool.wait(behind, 60));
  CHECK(pool.wait(ticket));
  CHECK_THROWS(pool.wait(ticket), std::invalid_argument);
  CHECK_THROWS(pool.done(ticket), std::invalid_argument);
  const int64_t nothing = pool.submit({});
  CHECK(pool.done(nothing));
  CHECK(pool.wait(nothing, 0));
}

void a_failure_reaches_the_waiter_and_nobody_else() {
  Pool pool(cores(3));
  std::atomic<int> after{0};
  const int64_t bad = pool.submit({{10,
                                    [](int64_t i, int) {
                                      if (i == 4) {
                                        throw std::runtime_error("chunk 4");
                                      }
                                    }},
                                   {10, [&](int64_t, int) { ++after; }}});
  const int64_t good = pool.submit({{10, [](int64_t, int) {}}});
  CHECK(pool.wait(good));
  CHECK_THROWS(pool.wait(bad), std::runtime_error);
  CHECK(after == 0);
}

void what_is_kept_lives_until_the_wait_and_no_longer() {
  Pool pool(cores(2));
  auto kept = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = kept;
  const int64_t ticket = pool.submit({{4, [](int64_t, int) {}}}, 0, std::move(kept));
  while (!pool.done(ticket)) {
    std::this_thread::yield();
  }
  CHECK(!seen.expired());
  CHECK(pool.wait(ticket));
  CHECK(seen.expired());
}

void steps_nest_and_work_runs_in_and_out_of_them() {
  Pool pool(cores(2));
  CHECK_THROWS(pool.step_end(), std::logic_error);
  pool.step_begin();
  pool.step_begin();
  for (int i = 0; i < 200; ++i) {
    std::atomic<int> ran{0};
    pool.wait(pool.submit({{3, [&](int64_t, int) { ++ran; }}, {3, [&](int64_t, int) { ++ran; }}}));
    CHECK(ran == 6);
    if (i == 100) {
      pool.step_end();
    }
    if (i == 150) {
      pool.step_end();
    }
  }
  CHECK_THROWS(pool.step_end(), std::logic_error);
}

void many_callers_at_once() {
  Pool pool(cores(3));
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        const int64_t one = pool.submit({{5, [&](int64_t c, int) { sum += c; }}});
        const int64_t two = pool.submit({{5, [&](int64_t c, int) { sum += c; }}}, 1);
        CHECK(pool.wait(two, 60));
        CHECK(pool.wait(one, 60));
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  CHECK(sum == 4 * 100 * 2 * 10);
}

void what_was_submitted_ends_before_the_pool_does() {
  std::atomic<int> ran{0};
  {
    Pool pool(cores(2));
    for (int i = 0; i < 20; ++i) {
      pool.submit({{3, [&](int64_t, int) { ++ran; }}});
    }
  }
  CHECK(ran == 60);
}

bool works(Pool& pool) {
  std::atomic<int> ran{0};
  return pool.wait(pool.submit({{8, [&](int64_t, int) { ++ran; }}}), 60) && ran == 8;
}

void a_forked_child_gets_a_pool_of_its_own() {
  CHECK(works(moesaic::process_pool()));
  CHECK(&moesaic::process_pool() == &moesaic::process_pool());
  CHECK(moesaic::process_pool().size() >= 1);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    _exit(works(moesaic::process_pool()) ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(works(moesaic::process_pool()));
}

}  // namespace

int main() {
  every_chunk_runs_once_and_phases_follow_each_other();
  fewer_threads_may_be_asked_for();
  tickets_are_waited_for_once_and_time_out();
  a_failure_reaches_the_waiter_and_nobody_else();
  what_is_kept_lives_until_the_wait_and_no_longer();
  steps_nest_and_work_runs_in_and_out_of_them();
  many_callers_at_once();
  what_was_submitted_ends_before_the_pool_does();
  if (kForks) {
    a_forked_child_gets_a_pool_of_its_own();
  }
  return 0;
}
