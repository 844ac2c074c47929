// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/timeline.h"

#include <chrono>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/communicator/clock_offset.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/files.h"
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
      statistics.forward_seconds = 0.002 * step;  // Not known in step 1.
      timeline.add(statistics);
    }
    const std::string json = timeline.json();
    expect_contains(json, "\"name\":\"step 2: backward\",\"ts\":");
    expect_contains(json, "\"name\":\"step 2: forward\",\"ts\":");
    expect_lacks(json, "step 1: forward");
    expect_contains(json, "step 1: bucket 1 of 1 gradients");
    expect_lacks(json, "\"dur\":-");
    EXPECT_THROW(timeline.write("/nowhere/timeline.json"), SystemError);
    EXPECT_THROW(timeline.write("/dev/full"), SystemError);
  });
}

TEST(Timeline, HasTheBucketsOfTheStepThoughOthersHaveBeenFormedSince) {
  run_ranks(2, [](Communicator& communicator) {
    Reducer reducer(communicator,
                    {{"a", DType::f32, 50}, {"b", DType::f32, 50}, {"c", DType::f32, 100}},
                    {.bucket_bytes = {600}});
    for (const std::size_t i : {0, 1, 2}) reducer.mark_ready(i);
    reducer.finalize();
    ASSERT_EQ(reducer.plan().size(), 2u);
    ASSERT_TRUE(reducer.rebuild());
    ASSERT_EQ(reducer.plan().size(), 1u);
    Timeline timeline(communicator.rank());
    timeline.add(reducer.last_step());
    expect_contains(timeline.json(), "step 1: bucket 0 of 2 gradients");
    expect_contains(timeline.json(), "step 1: bucket 1 of 1 gradients");
  });
}

// Viewers can draw two overlapping events of a track only if one contains the other, and then as if
// that one had called the other.
TEST(Timeline, BucketsThatAreUnderWayAtOnceHaveTracksOfTheirOwn) {
  Timeline timeline(0);
  StepStatistics statistics;
  statistics.step = 1;
  statistics.launch_seconds = {0, 1, 2, 4};
  statistics.end_seconds = {3, 2, 5, 6};
  statistics.bucket_gradients = {1, 1, 1, 1};
  timeline.add(statistics);
  const std::string json = timeline.json();
  for (const std::string event :
       {R"("tid":3,"name":"step 1: bucket 0 of)", R"("tid":4,"name":"step 1: bucket 1 of)",
        R"("tid":4,"name":"step 1: bucket 2 of)", R"("tid":3,"name":"step 1: bucket 3 of)",
        R"("tid":4,"name":"thread_name","args":{"name":"buckets"}})"}) {
    expect_contains(json, event);
  }
  expect_lacks(json, R"("tid":5)");
}

double waited_ms(const std::string& json, int rank) {
  const std::string label = fmt::format("rank {}: the others waited ", rank);
  const std::size_t at = json.find(label);
  return at == std::string::npos ? -1 : std::stod(json.substr(at + label.size()));
}

// Rank 2 launches the first bucket 400 ms after the others; rank 0 launches the second one 200 ms
// after the others.
TEST(Timeline, TellsInOneFileWhichRankTheOthersHaveWaitedFor) {
  const TemporaryFolder folder;
  const std::string path = folder / "merged.json";
  run_ranks(3, [&](Communicator& communicator, int rank) {
    Timeline timeline(communicator.rank());
    StepStatistics statistics;
    statistics.step = 1;
    statistics.begin = TimePoint(std::chrono::seconds(100));
    statistics.launch_seconds = {rank == 2 ? 0.5 : 0.1, rank == 0 ? 0.9 : 0.7};
    statistics.end_seconds = {1, 2};
    statistics.bucket_gradients = {1, 1};
    timeline.add(statistics);
    timeline.write_merged(communicator, path);
    if (rank == 1) timeline.add(statistics);
    const auto merge = [&] { timeline.write_merged(communicator, path); };
    expect_contains(testing::error_of<InvalidArgument>(merge),
                    "rank 0 has 2 buckets, rank 1 has 4");
  });
  const std::string json = read_file(path);
  // Clock offsets are known to a few hundredths of a millisecond, or less precisely on a busy
  // machine.
  EXPECT_NEAR(waited_ms(json, 0), 200, 50);
  EXPECT_NEAR(waited_ms(json, 1), 0, 50);
  EXPECT_NEAR(waited_ms(json, 2), 400, 50);
  expect_contains(json, "\"args\":{\"waited_for_ms\":");
  EXPECT_EQ(json.find("]}"), json.size() - 3);
}

// The ranks are threads of one process, and have the same clock.
TEST(ClockOffset, BoundsHoldTheTruth) {
  run_ranks(3, [](Communicator& communicator) {
    for (const ClockOffset& clock : measure_clock_offsets(communicator)) {
      EXPECT_LE(clock.offset, clock.uncertainty);
      EXPECT_GE(clock.offset, -clock.uncertainty);
      EXPECT_LT(clock.uncertainty, std::chrono::milliseconds(100));
    }
  });
}

}  // namespace
}  // namespace stretto
