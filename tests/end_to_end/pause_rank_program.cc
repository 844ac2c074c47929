// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of a job in which a rank will be stopped for a while. It runs checked collectives, prints
// "ready PID" after the first few, and goes on until rank 0 gets SIGUSR1. Then all ranks print
// "right MS ROUNDS", the longest time that a round has taken and the number of rounds; or "wrong"
// and why, with status 1. As `pause_rank_program flood`, rank 0 sends rank 1 more small messages
// than sockets hold before rank 1 receives any. As `pause_rank_program signals`, a signal handler
// is called thousands of times a second, from before the rank joins until it has run a hundred
// rounds.

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/stretto.h"
#include "tests/end_to_end/rank_program.h"

namespace {

constexpr std::size_t kLargeCount = (1 << 20) / sizeof(float);
constexpr std::size_t kFloodBytes = 32 << 20;
constexpr std::size_t kFloodMessages = 1024;

class Worker {
 public:
  explicit Worker(stretto::Communicator& comm)
      : comm_(comm), registered_(comm.allocate<float>(kLargeCount)) {}

  void run_round() {
    ++round_;
    for (int i = 0; i < 8; ++i) {
      expect_sums(std::span(own_).first(2));
      expect_sums(registered_.span().first(1000));
    }
    comm_.barrier().wait();
    const std::size_t root = round_ % static_cast<std::size_t>(comm_.size());
    std::size_t sent = rank() == root ? round_ : 0;
    comm_.broadcast(std::span(&sent, 1), {.root = static_cast<int>(root)}).wait();
    if (sent != round_) throw std::runtime_error("broadcast " + std::to_string(sent));
    expect_sums(registered_.span());
    expect_sums(std::span(own_));
  }

  void flood() {
    ++round_;
    const std::size_t count = kFloodBytes / sizeof(float) / kFloodMessages;
    if (rank() == 0) {
      std::vector<stretto::Work> sends;
      std::fill(own_.begin(), own_.end(), value(0, 0));
      for (std::size_t i = 0; i < kFloodMessages; ++i) {
        sends.push_back(comm_.send(std::span<const float>(own_).first(count), {.to = 1}));
      }
      for (stretto::Work& send : sends) send.wait();
      return;
    }
    for (std::size_t i = 0; i < kFloodMessages; ++i) {
      const std::span<float> into = std::span(own_).first(count);
      comm_.recv(into, {.from = 0}).wait();
      if (std::ranges::count(into, value(0, 0)) == static_cast<std::ptrdiff_t>(count)) continue;
      throw std::runtime_error("message " + std::to_string(i));
    }
  }

  // All ranks learn whether rank 0 wants to end.
  bool agree(bool end) {
    std::int32_t agreed = end ? 1 : 0;
    comm_.broadcast(std::span(&agreed, 1)).wait();
    return agreed != 0;
  }

 private:
  std::size_t rank() const { return static_cast<std::size_t>(comm_.rank()); }
  // Whole numbers this small have exact sums.
  float value(std::size_t rank, std::size_t i) const {
    return static_cast<float>((rank + 1) * (round_ % 64) + i % 16);
  }
  void expect_sums(std::span<float> data) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = value(rank(), i);
    comm_.all_reduce(data).wait();
    for (std::size_t i = 0; i < data.size(); ++i) {
      float sum = 0;
      for (int r = 0; r < comm_.size(); ++r) sum += value(static_cast<std::size_t>(r), i);
      if (data[i] == sum) continue;
      throw std::runtime_error("element " + std::to_string(i) + " of " +
                               std::to_string(data.size()) + " in round " + std::to_string(round_));
    }
  }

  stretto::Communicator& comm_;
  std::size_t round_ = 0;
  std::vector<float> own_ = std::vector<float>(kLargeCount);
  stretto::Buffer<float> registered_;
};

volatile sig_atomic_t told_to_end = 0;

// Signals come as from a profiler. Without SA_RESTART, they also interrupt system calls.
void keep_interrupting() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGALRM, &action, nullptr);
  const itimerval often{.it_interval = {0, 100}, .it_value = {0, 100}};
  ::setitimer(ITIMER_REAL, &often, nullptr);
}

void work(std::string_view mode) {
  ::signal(SIGUSR1, [](int) { told_to_end = 1; });
  const bool is_interrupted = mode == "signals";
  if (is_interrupted) keep_interrupting();
  auto comm = stretto::join();
  Worker worker(*comm);
  const auto run_round = [&] { return mode == "flood" ? worker.flood() : worker.run_round(); };
  for (int i = 0; i < 5; ++i) run_round();
  std::printf("ready %d\n", ::getpid());
  std::fflush(stdout);
  stretto::Duration longest{};
  int rounds = 0;
  for (bool end = false; !end; ++rounds) {
    const stretto::TimePoint begin = stretto::Clock::now();
    run_round();
    end = worker.agree(told_to_end != 0 || (is_interrupted && rounds == 100));
    longest = std::max(longest, stretto::Clock::now() - begin);
  }
  const auto count = std::chrono::duration_cast<std::chrono::milliseconds>(longest).count();
  std::printf("right %lld %d\n", static_cast<long long>(count), rounds);
}

}  // namespace

int main(int argument_count, char** arguments) {
  return stretto::testing::run_or_explain([&] { work(argument_count > 1 ? arguments[1] : ""); });
}
