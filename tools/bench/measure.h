// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <cmath>

#include "tools/bench/board.h"
#include "tools/bench/statistics.h"

// How a line of a benchmark is measured, for stretto and for the libraries that it is compared
// with. Needs no linking with stretto, as board.h.
namespace stretto::bench {

// What measure() needs from the ranks that measure together. All ranks make the same calls in the
// same order.
class Coordinator {
 public:
  virtual ~Coordinator() = default;
  virtual int size() const = 0;
  virtual void barrier() = 0;
  // Returns rank 0's value on all ranks.
  virtual double agree(double value) = 0;
  // Replaces each entry by its largest value on any rank.
  virtual void maxima(std::vector<double>& values) = 0;
  // The time that a flag takes from one to the other of ranks 0 and 1, in nanoseconds; 0 if it was
  // not measured.
  virtual double flag_latency_ns() = 0;
};

// Coordinates ranks of one host by a Board. maxima() also leaves each rank's values there.
class BoardCoordinator final : public Coordinator {
 public:
  explicit BoardCoordinator(Board& board) : board_(board) {}

  int size() const override { return board_.size(); }
  void barrier() override { board_.barrier(); }
  double agree(double value) override {
    // The two slots are used in turn: before rank 0 writes a slot again, all ranks have passed the
    // next barrier, and before that barrier they have read the slot.
    double& slot = board_.head().decided[turn_];
    turn_ = 1 - turn_;
    if (board_.rank() == 0) slot = value;
    board_.barrier();
    return slot;
  }
  void maxima(std::vector<double>& values) override {
    for (std::size_t first = 0; first < values.size(); first += kMaxSingles) {
      const std::size_t count = std::min<std::size_t>(kMaxSingles, values.size() - first);
      std::copy_n(values.data() + first, count, board_.singles(board_.rank()));
      board_.barrier();
      for (int other = 0; other < size(); ++other) {
        for (std::size_t i = 0; i < count; ++i) {
          values[first + i] = std::max(values[first + i], board_.singles(other)[i]);
        }
      }
      board_.barrier();
    }
  }
  double flag_latency_ns() override {
    board_.barrier();
    double latency_ns = 0;
    if (size() > 1 && !board_.oversubscribed() && board_.rank() < 2) latency_ns = ping_pong();
    return agree(latency_ns);
  }

 private:
  double ping_pong() {
    BoardHead& head = board_.head();
    std::vector<double> one_way_ns;
    // The flags go on counting from line to line, so nobody has to reset them.
    const std::uint64_t first = head.pong.load(std::memory_order_acquire);
    for (std::uint64_t i = first + 1; i <= first + 200; ++i) {
      if (board_.rank() == 1) {
        board_.wait_until([&] { return head.ping.load(std::memory_order_acquire) == i; });
        head.pong.store(i, std::memory_order_release);
        continue;
      }
      const auto start = std::chrono::steady_clock::now();
      head.ping.store(i, std::memory_order_release);
      board_.wait_until([&] { return head.pong.load(std::memory_order_acquire) == i; });
      const std::chrono::duration<double, std::nano> both =
          std::chrono::steady_clock::now() - start;
      one_way_ns.push_back(both.count() / 2);
    }
    return board_.rank() == 0 ? median(one_way_ns) : 0;
  }

  Board& board_;
  std::size_t turn_ = 0;
};

// How close ranks 0 and 1 are to each other. The cores of a virtual machine move between places
// where they share a cache and places where they do not, and only lines of the same regime may be
// compared.
inline constexpr double kNearNs = 110;
inline std::string regime(const Summary& summary, bool oversubscribed) {
  if (oversubscribed) return "oversubscribed";
  if (summary.latency_before_ns <= 0 || summary.latency_after_ns <= 0) return "unknown";
  const bool before = summary.latency_before_ns < kNearNs;
  const bool after = summary.latency_after_ns < kNearNs;
  if (before != after) return "mixed";
  return before ? "near" : "far";
}

// Binds this thread to the allowed core number `index`, modulo their count; false if refused. Call
// it after the library under test has started, so that what the library decides by its affinity
// mask is the same as without a benchmark.
inline bool pin_to_core(int index) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
  int skip = index % std::max(1, CPU_COUNT(&allowed));
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return ::sched_setaffinity(0, sizeof(one), &one) == 0;
  }
  return false;
}

struct MeasureOptions {
  double seconds = 0.25;  // For the samples, including prepare() between them.
  int min_samples = 20;
  double warm_up_seconds = 0.05;
};

// Shorter calls are also measured in batches, because the clock and the skew between the ranks at
// the start of a sample would be a large part of the time of a single call.
inline constexpr double kBatchedBelowUs = 2;
inline constexpr int kCallsPerBatch = 100;
// The samples of a line are taken in this many blocks, with `between` before each.
inline constexpr int kBlocks = 4;

namespace detail {

inline double elapsed_us(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

inline double clock_cost_us() {
  std::vector<double> costs;
  for (int i = 0; i < 1000; ++i) costs.push_back(elapsed_us(std::chrono::steady_clock::now()));
  return median(costs);
}

template <class Prepare, class Call>
double single_us(Coordinator& coordinator, Prepare& prepare, Call& call) {
  prepare();
  coordinator.barrier();
  const auto start = std::chrono::steady_clock::now();
  call();
  return elapsed_us(start);
}

template <class Call>
double batch_us(Coordinator& coordinator, Call& call) {
  coordinator.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCallsPerBatch; ++i) call();
  return elapsed_us(start) / kCallsPerBatch;
}

// What the warm-up has measured, the same on all ranks.
struct Pace {
  double call_us = 0;    // The time of a call on the slowest rank.
  double sample_us = 0;  // The time of a sample, including preparation and barrier.
};

// Warms up until two windows agree within 10 %, or the time is over; makes at least one window of 5
// calls. Rank 0 decides, so that all ranks make the same number of calls.
template <class Prepare, class Call>
Pace warm_up(Coordinator& coordinator, const MeasureOptions& options, Prepare& prepare,
             Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  double previous = 0;
  int calls = 5;
  while (true) {
    const auto window = std::chrono::steady_clock::now();
    std::vector<double> times;
    for (int i = 0; i < calls; ++i) times.push_back(single_us(coordinator, prepare, call));
    const double call_us = median(times);
    const double sample_us = elapsed_us(window) / calls;
    const bool steady = std::abs(call_us - previous) <= 0.1 * call_us;
    const bool over = elapsed_us(begin) > 1e6 * options.warm_up_seconds;
    if (coordinator.agree(steady || over ? 1 : 0) != 0) {
      // Where ranks take turns on a core, a rank may find that the others have done all the work.
      std::vector<double> slowest{call_us};
      coordinator.maxima(slowest);
      return {slowest.front(), coordinator.agree(sample_us)};
    }
    previous = call_us;
    // About a millisecond: five calls of a microsecond say nothing about a clock rate that rises.
    calls = static_cast<int>(coordinator.agree(std::clamp(1000 / (sample_us + 0.01), 5.0, 1000.0)));
  }
}

struct Counts {
  int singles = 0;  // In one block.
  int batches = 0;
};

inline Counts counts_for(Coordinator& coordinator, const MeasureOptions& options,
                         const Pace& pace) {
  const bool batched = coordinator.agree(pace.call_us) < kBatchedBelowUs;
  const double budget_us = 1e6 * options.seconds * (batched ? 0.5 : 1);
  const auto blocks = [&](double wanted, int limit) {
    const double bounded = std::clamp(wanted, std::min<double>(limit, options.min_samples),
                                      static_cast<double>(limit));
    return static_cast<int>(std::ceil(coordinator.agree(bounded) / kBlocks));
  };
  Counts counts;
  counts.singles = blocks(budget_us / (pace.sample_us + 0.01), kMaxSingles - kBlocks);
  if (batched) {
    const double batch = kCallsPerBatch * (pace.call_us + 0.01);
    counts.batches = blocks(budget_us / batch, kMaxBatches - kBlocks);
  }
  return counts;
}

}  // namespace detail

// Measures `call` on all ranks of the coordinator; collective. For each sample, a rank runs
// `prepare` (which rewrites its input), a barrier, and `call` between two readings of the clock.
// The time of a sample is that of its slowest rank, less the cost of reading the clock. Calls
// shorter than kBatchedBelowUs are also measured in batches of calls in a row without `prepare`;
// then p50_us is the median of the batches. The last call is a single one, so that its result can
// be checked. `between` runs on all ranks before each block of samples, for measurements that
// belong close to the samples; the first single call after it is not counted, because it finds the
// caches as `between` has left them.
template <class Prepare, class Call, class Between>
Summary measure(Coordinator& coordinator, const MeasureOptions& options, Prepare&& prepare,
                Call&& call, Between&& between) {
  Summary summary;
  summary.latency_before_ns = coordinator.flag_latency_ns();
  const double clock_us = detail::clock_cost_us();
  const detail::Pace pace = detail::warm_up(coordinator, options, prepare, call);
  const detail::Counts counts = detail::counts_for(coordinator, options, pace);
  std::vector<double> singles;
  std::vector<double> batches;
  singles.reserve(static_cast<std::size_t>(kBlocks * counts.singles));
  for (int block = 0; block < kBlocks; ++block) {
    between();
    for (int i = 0; i < counts.batches; ++i) batches.push_back(detail::batch_us(coordinator, call));
    detail::single_us(coordinator, prepare, call);
    for (int i = 0; i < counts.singles; ++i) {
      const double time_us = detail::single_us(coordinator, prepare, call);
      singles.push_back(std::max(0.0, time_us - clock_us));
    }
  }
  summary.latency_after_ns = coordinator.flag_latency_ns();
  coordinator.maxima(batches);
  coordinator.maxima(singles);
  summary.samples = static_cast<std::uint32_t>(singles.size());
  summary.batched = !batches.empty();
  summary.p50_us = median(summary.batched ? batches : singles);
  summary.p99_us = percentile(singles, 0.99);
  summary.max_us = percentile(singles, 1);
  summary.min_us = percentile(singles, 0);
  return summary;
}

template <class Prepare, class Call>
Summary measure(Coordinator& coordinator, const MeasureOptions& options, Prepare&& prepare,
                Call&& call) {
  return measure(coordinator, options, prepare, call, [] {});
}

}  // namespace stretto::bench
