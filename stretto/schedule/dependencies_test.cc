// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/dependencies.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/schedule/builder.h"
#include "stretto/schedule/joint.h"
#include "stretto/schedule/verify/results.h"

namespace stretto::schedule {
namespace {

using Edges = std::vector<std::pair<int, int>>;

// (predecessor, successor), sorted.
Edges edges_of(const Schedule& schedule) {
  const Dependencies result = dependencies(schedule);
  Edges edges;
  std::vector<int> counted(schedule.steps.size());
  for (std::size_t step = 0; step < schedule.steps.size(); ++step) {
    for (const std::int32_t successor : result.successors_of(step)) {
      edges.emplace_back(static_cast<int>(step), successor);
      ++counted[successor];
    }
  }
  EXPECT_EQ(counted, result.predecessor_count);
  std::ranges::sort(edges);
  return edges;
}

ScheduleBuilder builder_of(Access access = Access::messages) {
  return ScheduleBuilder({.rank = 0, .rank_count = 3}, {.algorithm = "test", .access = access});
}

TEST(Dependencies, AReaderWaitsForTheWriter) {
  ScheduleBuilder schedule = builder_of();
  schedule.recv(1, raw(0, 0));
  schedule.send(raw(0, 0), 2);
  schedule.send(raw(0, 0), 1);
  EXPECT_EQ(edges_of(std::move(schedule).build()), (Edges{{0, 1}, {0, 2}}));
}

TEST(Dependencies, AWriterWaitsForAllReaders) {
  ScheduleBuilder schedule = builder_of();
  schedule.recv(1, raw(0, 0));
  schedule.send(raw(0, 0), 2);
  schedule.send(raw(0, 0), 1);
  schedule.recv(2, raw(0, 0));
  EXPECT_EQ(edges_of(std::move(schedule).build()), (Edges{{0, 1}, {0, 2}, {1, 3}, {2, 3}}));
}

TEST(Dependencies, AWriterWaitsForTheWriterBeforeIt) {
  ScheduleBuilder schedule = builder_of();
  schedule.recv(1, raw(0, 0));
  schedule.recv(2, raw(0, 0));
  EXPECT_EQ(edges_of(std::move(schedule).build()), (Edges{{0, 1}}));
}

TEST(Dependencies, DifferentSlotsAreIndependent) {
  ScheduleBuilder schedule = builder_of();
  schedule.recv(1, raw(0, 0));
  schedule.recv(1, raw(1, 0));
  schedule.recv(1, partial(0, 0));
  schedule.recv(1, output(0));
  schedule.send(input(1), 2);
  EXPECT_EQ(edges_of(std::move(schedule).build()), Edges());
}

TEST(Dependencies, InputAndOutputOfAChunkAreOnePlace) {
  ScheduleBuilder schedule = builder_of();
  schedule.send(input(0), 1);
  schedule.recv(2, output(0));
  EXPECT_EQ(edges_of(std::move(schedule).build()), (Edges{{0, 1}}));
}

// In place it does nothing; out of place nobody else is concerned.
TEST(Dependencies, ACopyOfInputToItsOutputDisturbsNoReaderOfTheInput) {
  ScheduleBuilder schedule = builder_of();
  schedule.send(input(0), 1);
  schedule.copy(input(0), output(0));
  schedule.send(input(0), 2);
  schedule.send(output(0), 1);
  EXPECT_EQ(edges_of(std::move(schedule).build()), (Edges{{1, 3}}));
}

TEST(Dependencies, AReduceInPlaceDoesNotWaitForItself) {
  ScheduleBuilder schedule = builder_of();
  schedule.recv(1, partial(0, 0));
  schedule.reduce({partial(0, 0), input(0)}, {partial(0, 0)});
  schedule.send(partial(0, 0), 1);
  EXPECT_EQ(edges_of(std::move(schedule).build()), (Edges{{0, 1}, {1, 2}}));
}

TEST(Dependencies, ASentSignalWaitsForEarlierReceives) {
  ScheduleBuilder schedule = builder_of();
  schedule.send_signal(1);
  schedule.recv_signal(2);
  schedule.recv(1, raw(0, 0));
  schedule.send_signal(2);
  schedule.recv_signal(1);
  EXPECT_EQ(edges_of(std::move(schedule).build()), (Edges{{1, 3}, {2, 3}}));
}

TEST(Dependencies, ASyncSeparates) {
  ScheduleBuilder schedule = builder_of(Access::mapped);
  schedule.copy(input(0), raw(0, 0));
  schedule.copy(raw(0, 0), output(0));
  schedule.copy(input(1), raw(1, 1));
  schedule.sync();
  schedule.sync();
  schedule.copy(Place{1, raw(0, 0)}, output(0));
  schedule.copy(output(0), raw(0, 0));
  // 0 is covered by 1, which reads what it wrote; 6 by 5.
  EXPECT_EQ(edges_of(std::move(schedule).build()),
            (Edges{{0, 1}, {1, 3}, {2, 3}, {3, 4}, {4, 5}, {5, 6}}));
}

TEST(Dependencies, AnotherRanksSlotIsAnotherPlace) {
  ScheduleBuilder schedule = builder_of(Access::mapped);
  schedule.copy(Place{1, raw(0, 0)}, output(0));
  schedule.copy(input(1), raw(0, 1));
  EXPECT_EQ(edges_of(std::move(schedule).build()), Edges());
}

// Any order that the dependencies allow is an execution; all of them must give the right result.
class RandomRun {
 public:
  RandomRun(const JointSchedule& joint, std::uint64_t seed)
      : joint_(joint),
        random_(seed),
        waiting_for_(joint.step_count()),
        started_(joint.step_count()) {
    for (std::size_t step = 0; step < joint.step_count(); ++step) {
      waiting_for_[step] = joint.predecessor_count(step);
      if (waiting_for_[step] == 0) ready_.push_back(static_cast<std::int32_t>(step));
    }
  }

  JointRun run() && {
    while (!ready_.empty()) {
      std::swap(ready_[random_.below(ready_.size())], ready_.back());
      const std::int32_t step = ready_.back();
      ready_.pop_back();
      start(step);
    }
    execution_.complete = execution_.order.size() == joint_.step_count();
    return std::move(execution_);
  }

 private:
  void start(std::int32_t step) {
    started_[step] = true;
    const std::int32_t partner = joint_.partner(step);
    switch (joint_.step(step).kind) {
      case StepKind::send:
        if (started_[partner]) end({step, partner});
        break;
      case StepKind::recv:
        if (started_[partner]) end({partner, step});
        break;
      case StepKind::sync:
        syncs_.push_back(step);
        if (syncs_.size() == joint_.schedules().size()) end(std::exchange(syncs_, {}));
        break;
      case StepKind::reduce:
      case StepKind::copy:
        end({step});
        break;
    }
  }

  void end(const std::vector<std::int32_t>& steps) {
    for (const std::int32_t step : steps) {
      execution_.order.push_back(step);
      for (const std::int32_t successor : joint_.successors_of(step)) {
        if (--waiting_for_[successor] == 0) ready_.push_back(successor);
      }
    }
  }

  const JointSchedule& joint_;
  Random random_;
  std::vector<std::int32_t> waiting_for_;
  std::vector<bool> started_;
  std::vector<std::int32_t> ready_;
  std::vector<std::int32_t> syncs_;
  JointRun execution_;
};

TEST(Dependencies, AllowOnlyOrdersThatGiveTheRightResult) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == Collective::barrier) continue;
    for (const int n : {2, 3, 4, 6}) {
      const std::vector<Schedule> schedules = algorithm.build_all(n);
      const JointSchedule joint(schedules);
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const JointRun execution = RandomRun(joint, seed).run();
        ASSERT_TRUE(execution.complete) << algorithm.name << " on " << n << ", seed " << seed;
        ExpressionPool pool;
        for (const bool in_place : {false, true}) {
          const Status status = check_results(joint, execution, in_place, pool);
          ASSERT_TRUE(status.ok()) << name(algorithm.collective) << " by " << algorithm.name
                                   << " on " << n << ", seed " << seed << ": " << status.message();
        }
      }
    }
  }
}

}  // namespace
}  // namespace stretto::schedule
