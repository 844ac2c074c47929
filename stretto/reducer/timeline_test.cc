// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/timeline.h"

#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_contains.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

TEST(Timeline, HasTracksForForwardBackwardAndBuckets) {
  run_ranks(2, [](Communicator& communicator) {
    Reducer reducer(communicator, {{"a", DType::f32, 100}, {"b", DType::f32, 100}},
                    {.bucket_bytes = {400}});
    Timeline timeline(communicator.rank());
    for (int step = 0; step < 2; ++step) {
      reducer.mark_ready(1);
      reducer.mark_ready(0);
      reducer.finalize();
      StepStatistics statistics = reducer.last_step();
      EXPECT_EQ(statistics.bytes, 2 * 448u) << "whole cache lines";
      statistics.forward_begin = statistics.begin - std::chrono::milliseconds(3);
      statistics.forward_seconds = 0.002 * step;  // Not known of step 1.
      timeline.add(statistics, reducer.plan());
    }
    const std::string json = timeline.json();
    expect_contains(json, "\"name\":\"step 2: backward\",\"ts\":");
    expect_contains(json, "\"name\":\"step 2: forward\",\"ts\":");
    expect_lacks(json, "step 1: forward");
    expect_contains(json, "step 1: bucket 1 of 1 gradients");
    expect_lacks(json, "\"dur\":-");
    EXPECT_THROW(timeline.write("/nowhere/timeline.json"), SystemError);
  });
}

// Two events of a track that overlap, one inside the other at best, are drawn as if one had called
// the other.
TEST(Timeline, BucketsThatAreUnderWayAtOnceHaveTracksOfTheirOwn) {
  Timeline timeline(0);
  StepStatistics statistics;
  statistics.step = 1;
  statistics.launch_seconds = {0, 1, 2, 4};
  statistics.end_seconds = {3, 2, 5, 6};
  timeline.add(statistics, reducer::BucketPlan(4));
  const std::string json = timeline.json();
  for (const std::string event :
       {R"("tid":3,"name":"step 1: bucket 0 of)", R"("tid":4,"name":"step 1: bucket 1 of)",
        R"("tid":4,"name":"step 1: bucket 2 of)", R"("tid":3,"name":"step 1: bucket 3 of)",
        R"("tid":4,"name":"thread_name","args":{"name":"buckets"}})"}) {
    expect_contains(json, event);
  }
  expect_lacks(json, R"("tid":5)");
}

}  // namespace
}  // namespace stretto
