// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Whether a wrong schedule would be noticed: all-reduces in which one step of one rank is missing,
// goes to another rank or sends another chunk, run by the executor on the simulated network.

#include <gtest/gtest.h>

#include <functional>

#include "stretto/execution/message_execution.h"
#include "tests/support/algorithms_for.h"
#include "tests/support/problem.h"
#include "tests/support/simulated_world.h"

namespace stretto::simulation {
namespace {

using execution::Membership;
using execution::MessageExecution;
using execution::Plan;
using schedule::Algorithm;
using schedule::Schedule;
using schedule::StepKind;
using transport::BufferRef;

constexpr int kRanks = 4;
constexpr std::size_t kCount = 1024;  // All chunks of all algorithms have the same length.
const OperationDescriptor kOperation{.collective = Collective::all_reduce,
                                     .op = ReduceOp::sum,
                                     .dtype = DType::i32,
                                     .count = kCount};

// Runs one all-reduce by the given schedules. Returns whether all ranks end with the right result.
class ScheduleRun {
 public:
  explicit ScheduleRun(const std::vector<Schedule>& schedules)
      : world_(transport::sim::make_world({.ranks = kRanks, .seed = 1}).or_throw()) {
    for (int r = 0; r < kRanks; ++r) {
      memberships_.push_back({.group = 1, .rank = r, .members = {0, 1, 2, 3}});
      outputs_.emplace_back(oracle_.input_of(r).size());
    }
    for (std::size_t r = 0; r < kRanks; ++r) {
      auto plan = std::make_shared<const Plan>(
          schedules[r],
          Plan::Options{.operation = kOperation, .segment_bytes_max = 1 << 16, .lanes = 4});
      executions_.push_back(std::make_unique<MessageExecution>(std::move(plan), memberships_[r],
                                                               *world_.endpoints[r]));
    }
  }
  ~ScheduleRun() {
    // What is still posted belongs to executions, which end before the endpoints do.
    const Status over(StatusCode::aborted, "the test is over");
    for (auto& endpoint : world_.endpoints) endpoint->forget(1, memberships_[0].members, over);
  }

  bool is_right() {
    for (std::size_t r = 0; r < kRanks; ++r) {
      execution::Turn turn = whole_turn(r);
      executions_[r]->start({.operation = kOperation,
                             .input = BufferRef::own(oracle_.input_of(static_cast<int>(r)).data()),
                             .output = BufferRef::own(outputs_[r].data()),
                             .sequence = 1},
                            turn);
    }
    while (move() || world_.network->skip()) continue;
    const Bytes expected = oracle_.expected_of(0);
    for (std::size_t r = 0; r < kRanks; ++r) {
      const MessageExecution& execution = *executions_[r];
      if (!execution.ended() || !execution.status().ok() || outputs_[r] != expected) return false;
    }
    return true;
  }

 private:
  execution::Turn whole_turn(std::size_t rank) {
    return {*world_.endpoints[rank], execution::kUnlimited};
  }
  bool move() {
    bool moved = false;
    for (std::size_t r = 0; r < kRanks; ++r) {
      moved = world_.endpoints[r]->progress() || moved;
      execution::Turn turn = whole_turn(r);
      moved = executions_[r]->advance(turn) || moved;
    }
    return moved;
  }

  transport::sim::World world_;
  std::vector<Membership> memberships_;
  const testing::Oracle oracle_{{.dtype = DType::i32, .ranks = kRanks, .count = kCount}};
  std::vector<Bytes> outputs_;
  std::vector<std::unique_ptr<MessageExecution>> executions_;
};

// Changes one step; returns whether it can be changed in this way.
using Change = std::function<bool(Schedule& steps, std::size_t step)>;

// Applies the change to every step of every rank, one at a time: each must be noticed.
void expect_noticed(const Change& change) {
  int changed = 0;
  for (const Algorithm* algorithm :
       testing::algorithms_for(Collective::all_reduce, schedule::Access::messages)) {
    const std::vector<Schedule> good = algorithm->build_all(kRanks);
    ASSERT_TRUE(ScheduleRun(good).is_right()) << algorithm->name;
    for (std::size_t r = 0; r < kRanks; ++r) {
      for (std::size_t step = 0; step < good[r].steps.size(); ++step) {
        std::vector<Schedule> bad = good;
        if (!change(bad[r], step)) continue;
        ++changed;
        EXPECT_FALSE(ScheduleRun(bad).is_right())
            << algorithm->name << ", step " << step << " of rank " << r;
      }
    }
  }
  EXPECT_GT(changed, 30);
}

TEST(ScheduleCanary, AMissingStepIsCaught) {
  expect_noticed([](Schedule& steps, std::size_t step) {
    steps.steps.erase(steps.steps.begin() + static_cast<std::ptrdiff_t>(step));
    return true;
  });
}

TEST(ScheduleCanary, AMessageToAnotherRankIsCaught) {
  expect_noticed([](Schedule& steps, std::size_t step) {
    if (steps.steps[step].kind != StepKind::send) return false;
    Rank& peer = steps.steps[step].peer;
    do {
      peer = (peer.value() + 1) % kRanks;
    } while (peer == steps.rank);
    return true;
  });
}

TEST(ScheduleCanary, AnotherChunkIsCaught) {
  expect_noticed([](Schedule& steps, std::size_t step) {
    const schedule::Step& changed = steps.steps[step];
    const bool takes = changed.kind == StepKind::send || changed.kind == StepKind::reduce;
    if (!takes || changed.sources_begin == changed.sources_end || steps.chunk_count == 1) {
      return false;
    }
    schedule::Slot& slot = steps.places[static_cast<std::size_t>(changed.sources_begin)].slot;
    if (slot.buffer != schedule::Buffer::input) return false;
    slot.chunk = (slot.chunk.value() + 1) % steps.chunk_count;
    slot.index = slot.chunk.value();
    return true;
  });
}

}  // namespace
}  // namespace stretto::simulation
