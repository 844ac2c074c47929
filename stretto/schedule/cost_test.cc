// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/cost.h"

#include <bit>

#include <gtest/gtest.h>

namespace stretto::schedule {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;
const LinkCost kLink;

Cost price(Collective collective, Access access, std::string_view name, int n,
           const CostQuery& query = {.bytes = kBufferBytes}) {
  return cost(*find_algorithm(collective, access, name), n, query);
}

// The table of docs/internals/algorithms.md, which has a test of its own, says how many steps and
// bytes schedules take. The tests below show what they cost.

// The time of one message alone.
double message_seconds(double bytes) {
  return kLink.latency_seconds + 2 * kLink.message_seconds + bytes * kLink.seconds_per_byte;
}

int ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

TEST(Cost, RingTakesTwoLaps) {
  for (const int n : {2, 3, 4, 8, 16, 33}) {
    const Cost ring = price(Collective::all_reduce, Access::messages, "ring", n);
    const double chunk = static_cast<double>(kBufferBytes) / n;
    const double seconds =
        2 * (n - 1) * message_seconds(chunk) + (n - 1) * 2 * chunk * kLink.reduce_seconds_per_byte;
    EXPECT_NEAR(ring.seconds, seconds, 1e-12) << n;
  }
}

TEST(Cost, DirectTakesTwoSteps) {
  for (const int n : {2, 3, 4, 8, 16}) {
    const Cost direct = price(Collective::all_reduce, Access::messages, "direct", n);
    const double chunk = static_cast<double>(kBufferBytes) / n;
    // The port sends n-1 messages one after the other, and the last one travels.
    const double port = (n - 1) * (kLink.message_seconds + chunk * kLink.seconds_per_byte);
    const double phase = port + kLink.message_seconds + kLink.latency_seconds;
    const double reduce = n * chunk * kLink.reduce_seconds_per_byte;
    EXPECT_NEAR(direct.seconds, 2 * phase + reduce, 1e-12) << n;
  }
}

TEST(Cost, RecursiveDoublingTakesLogarithmicallyManySteps) {
  for (const int n : {2, 4, 8, 64}) {
    const Cost doubling = price(Collective::all_reduce, Access::messages, "recursive_doubling", n);
    const double step =
        message_seconds(kBufferBytes) + 2 * kBufferBytes * kLink.reduce_seconds_per_byte;
    EXPECT_NEAR(doubling.seconds, ceil_log2(n) * step, 1e-12);
  }
}

TEST(Cost, GatherAndScatterMoveAChunkPerRankThroughTheRootsPort) {
  for (const int n : {2, 3, 8, 20}) {
    const double chunk = static_cast<double>(kBufferBytes) / n;
    const Cost gather = price(Collective::gather, Access::messages, "direct", n);
    const Cost scatter = price(Collective::scatter, Access::messages, "direct", n);
    const double port = (n - 1) * (kLink.message_seconds + chunk * kLink.seconds_per_byte);
    const double seconds = port + kLink.message_seconds + kLink.latency_seconds;
    EXPECT_NEAR(gather.seconds, seconds, 1e-12) << n;
    EXPECT_NEAR(scatter.seconds, seconds, 1e-12) << n;
  }
}

// The bytes are those of one rank's input, but the n * n chunks are those of all ranks.
TEST(Cost, AnAllToAllHasOneChunkPerRankInEveryBuffer) {
  for (const int n : {2, 4, 8, 20}) {
    const double chunk = static_cast<double>(kBufferBytes) / n;
    const Cost pairwise = price(Collective::all_to_all, Access::messages, "pairwise", n);
    const double port = (n - 1) * (kLink.message_seconds + chunk * kLink.seconds_per_byte);
    EXPECT_NEAR(pairwise.seconds, port + kLink.message_seconds + kLink.latency_seconds, 1e-12);
  }
}

TEST(Cost, MappedStepsAreSyncsAndBytesOnOtherRanks) {
  const Cost direct = price(Collective::all_reduce, Access::mapped, "direct_mapped", 4);
  EXPECT_EQ(direct.steps, 2);
  EXPECT_EQ(direct.sent_bytes_max, kBufferBytes * 6 / 4);
  // Four chunks are read, and three are written besides the first.
  EXPECT_NEAR(direct.seconds,
              2 * 2 * kLink.sync_seconds + 7 * kBufferBytes / 4.0 * kLink.reduce_seconds_per_byte,
              1e-12);
}

TEST(Cost, OneRankOnlyReduces) {
  for (const char* name : {"ring", "direct", "recursive_doubling", "binomial_tree"}) {
    const Cost alone = price(Collective::all_reduce, Access::messages, name, 1);
    EXPECT_EQ(alone.steps, 0);
    EXPECT_EQ(alone.sent_bytes_max, 0);
    EXPECT_DOUBLE_EQ(alone.seconds, kBufferBytes * kLink.reduce_seconds_per_byte);
  }
}

TEST(Cost, PartialValuesOfHalfPrecisionAreTwiceAsBig) {
  const CostQuery query{.bytes = kBufferBytes, .partial_scale = 2};
  const Cost ring = price(Collective::all_reduce, Access::messages, "ring", 4, query);
  // Of six hops, the second and third carry partial values.
  EXPECT_EQ(ring.sent_bytes_max, kBufferBytes / 4 * 8);
  const Cost direct = price(Collective::all_reduce, Access::messages, "direct", 4, query);
  EXPECT_EQ(direct.sent_bytes_max, kBufferBytes / 4 * 6);
}

TEST(Cost, SegmentsHideReductionBehindTransfer) {
  const double whole = price(Collective::all_reduce, Access::messages, "ring", 8).seconds;
  const double pipelined = price(Collective::all_reduce, Access::messages, "ring", 8,
                                 {.bytes = kBufferBytes, .segment_bytes = kBufferBytes / 64})
                               .seconds;
  const double bound = 2 * 7 / 8.0 * kBufferBytes * kLink.seconds_per_byte;
  EXPECT_LT(pipelined, whole);
  EXPECT_GT(pipelined, bound);
}

// The time that is added for segments that are not played must continue the played time.
TEST(Cost, LongBuffersCostInProportion) {
  for (const char* name : {"ring", "direct", "recursive_doubling", "binomial_tree"}) {
    auto seconds = [name](std::size_t bytes) {
      return price(Collective::all_reduce, Access::messages, name, 8,
                   {.bytes = bytes, .segment_bytes = 1 << 14})
          .seconds;
    };
    const double growth = seconds(64 << 20) - seconds(48 << 20);
    EXPECT_NEAR(growth, seconds(48 << 20) - seconds(32 << 20), growth * 1e-6) << name;
    EXPECT_NEAR(seconds(64 << 20) / growth, 4, 0.2) << name;
  }
}

TEST(Cost, ABarrierHasNoSegments) {
  const Cost barrier = price(Collective::barrier, Access::messages, "recursive_doubling", 8,
                             {.bytes = kBufferBytes, .segment_bytes = 1});
  EXPECT_NEAR(barrier.seconds, 3 * message_seconds(0), 1e-12);
}

TEST(Cost, AReduceOfFewBytesGoesUpATreeAndALongOneThroughAllRanks) {
  auto seconds = [](const char* name, std::size_t bytes) {
    return price(Collective::reduce, Access::messages, name, 64, {.bytes = bytes}).seconds;
  };
  EXPECT_LT(seconds("knomial", 64), seconds("binomial_tree", 64));
  EXPECT_LT(seconds("binomial_tree", 64), seconds("direct", 64));
  EXPECT_LT(seconds("direct", 1 << 24), seconds("binomial_tree", 1 << 24));
  EXPECT_LT(seconds("binomial_tree", 1 << 24), seconds("knomial", 1 << 24));
}

// The reason why there is more than one algorithm.
TEST(Cost, NoAlgorithmIsBestForAllSizes) {
  auto seconds = [](const char* name, std::size_t bytes) {
    return price(Collective::all_reduce, Access::messages, name, 16, {.bytes = bytes}).seconds;
  };
  EXPECT_LT(seconds("recursive_doubling", 64), seconds("direct", 64));
  EXPECT_LT(seconds("direct", 1 << 20), seconds("recursive_doubling", 1 << 20));
}

}  // namespace
}  // namespace stretto::schedule
