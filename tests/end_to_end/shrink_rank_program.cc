// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of a job that goes on without the ranks that it loses:
//   shrink_rank_program LEFT WHAT MICROSECONDS TIMEOUT_SECONDS
// It reduces until that fails, shrinks, and so on until LEFT ranks are left. Then it shrinks once
// more, without need, and prints "left MASK MILLISECONDS": which ranks are left, and how long its
// longest shrink took. It prints "ready" after its first reduction. WHAT is "lives"; or
// "dies_at_work" or "dies_in_shrink", MICROSECONDS after that has begun; or "poor": it has no
// descriptor to spare in its first shrink. If a shrink times out it prints "late TEXT", if a shrink
// fails "failed TEXT", and tries again.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "stretto/stretto.h"
#include "tests/end_to_end/rank_program.h"

namespace {

using stretto::Communicator;

void die_after(std::chrono::microseconds time) {
  std::thread([time] {
    std::this_thread::sleep_for(time);
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

void set_descriptor_limit(rlim_t count) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min(count, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void say(const char* word, const char* text) {
  std::printf("%s %s\n", word, text);
  std::fflush(stdout);
}

// Returns the set of ranks in the sum, as bits: each adds its own.
int sum(Communicator& comm, int original_rank) {
  std::vector<std::int32_t> data(100, 1 << original_rank);
  comm.all_reduce(data).wait();
  if (std::ranges::count(data, data.front()) != 100) throw std::runtime_error("uneven sum");
  return data.front();
}

std::unique_ptr<Communicator> shrink(Communicator& comm) {
  while (true) {
    try {
      return comm.shrink();
    } catch (const stretto::Timeout& late) {
      say("late", late.what());
    } catch (const stretto::Error& error) {
      say("failed", error.what());
      set_descriptor_limit(1000);
    }
  }
}

struct Plan {
  int left;
  std::string what;
  std::chrono::microseconds after;
  std::chrono::seconds timeout;
};

void work(const Plan& plan) {
  auto comm = stretto::join(
      {.join_timeout = std::chrono::seconds(60), .timeout = std::chrono::seconds(plan.timeout)});
  const int self = comm->rank().value();
  stretto::Duration worst{};
  bool first = true;
  while (comm->size() > plan.left) {
    try {
      (void)sum(*comm, self);  // When it returns, all have joined.
      if (first) say("ready", std::to_string(::getpid()).c_str());
      if (plan.what == "dies_at_work" && first) die_after(plan.after);
      while (true) (void)sum(*comm, self);
    } catch (const stretto::Error&) {
    }
    if (plan.what == "dies_in_shrink" && first) die_after(plan.after);
    if (plan.what == "poor" && first) set_descriptor_limit(3);
    first = false;
    const stretto::TimePoint begin = stretto::Clock::now();
    auto left = shrink(*comm);
    worst = std::max(worst, stretto::Clock::now() - begin);
    comm = std::move(left);
  }
  comm = shrink(*comm);
  std::printf("left %d %.3f\n", sum(*comm, self), 1e3 * stretto::seconds(worst));
  comm->barrier().wait();
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 5) return 2;
  const Plan plan{.left = std::atoi(arguments[1]),
                  .what = arguments[2],
                  .after = std::chrono::microseconds(std::atoi(arguments[3])),
                  .timeout = std::chrono::seconds(std::atoi(arguments[4]))};
  return stretto::testing::run_or_explain([&] { work(plan); });
}
