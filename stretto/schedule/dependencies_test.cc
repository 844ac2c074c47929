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
#include "stretto/schedule/verify/parts.h"

namespace stretto::schedule {
namespace {

using Edges = std::vector<std::pair<int, int>>;

// Returns the pairs (predecessor, successor), sorted.
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

// In place, this copy does nothing. Out of place, it concerns nobody else.
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
  // Step 1 has waited for step 0, so the sync need not. Step 6 waits for sync 4 through step 5.
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
TEST(Dependencies, AllowOnlyOrdersThatGiveTheRightResult) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == Collective::barrier) continue;
    for (const int n : {2, 3, 4, 6}) {
      const std::vector<Schedule> schedules = algorithm.build_all(n);
      const JointSchedule joint(schedules);
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        Random random(seed);
        const JointRun execution =
            execute(joint, [&](std::size_t ready) { return random.below(ready); });
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
