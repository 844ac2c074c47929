// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/bucket_size.h"

#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/rank_vector.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using Limits = std::vector<std::size_t>;
constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

TEST(BucketSize, LatencyIsATwentiethOfABucketsTime) {
  // 50 us and 1 GB/s: 19 * 50 kB = 950 kB, rounded up.
  EXPECT_EQ(reducer::bucket_bytes_for({50e-6, 1e9}), (Limits{256 * kKiB, kMiB}));
  // Ten times the bandwidth needs buckets of about ten times the size.
  EXPECT_EQ(reducer::bucket_bytes_for({50e-6, 10e9}), (Limits{4 * kMiB, 16 * kMiB}));
}

TEST(BucketSize, StaysWithinBounds) {
  EXPECT_EQ(reducer::bucket_bytes_for({0, 1e9}), (Limits{64 * kKiB, 256 * kKiB}));
  EXPECT_EQ(reducer::bucket_bytes_for({1, 1e9}), (Limits{25 * kMiB / 4, 25 * kMiB}));
}

TEST(BucketSize, AllRanksMeasureTheSame) {
  RankVector<Limits> limits(3);
  run_ranks(3, [&](Communicator& communicator) {
    limits[communicator.rank()] = measured_bucket_bytes(communicator);
    Reducer reducer(communicator, {{"g", DType::f32, 10}},
                    {.bucket_bytes = limits[communicator.rank()]});
    reducer.mark_ready(0);
    EXPECT_NO_THROW(reducer.finalize());
  });
  EXPECT_EQ(limits[0], limits[1]);
  EXPECT_EQ(limits[0], limits[2]);
  ASSERT_EQ(limits[0].size(), 2u);
  EXPECT_LE(limits[0][0], limits[0][1]);
  EXPECT_LE(limits[0][1], 25 * kMiB);
}

TEST(BucketSize, WhatIsToBeMeasuredIsNoLimitOfAReducer) {
  run_ranks(1, [](Communicator& communicator) {
    const auto build = [&](const Limits& bytes) {
      return Reducer(communicator, {{"a", DType::f32, 1}, {"b", DType::f32, 1}},
                     {.bucket_bytes = bytes})
          .plan()
          .size();
    };
    EXPECT_EQ(build({0}), 2u) << "a bucket for each";
    expect_contains(testing::message_of<InvalidArgument>([&] { build(kAutomaticBucketBytes); }),
                    "bucket_bytes is automatic");
  });
}

}  // namespace
}  // namespace stretto
