// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/bucket_plan.h"

#include <vector>

#include <gtest/gtest.h>

// What PyTorch does with the same input is compared in tests/golden/bucket_plan_test.cc; here each
// rule stands alone.
namespace stretto::reducer {
namespace {

using Indices = std::vector<std::size_t>;

std::vector<Indices> members(const BucketPlan& plan) {
  std::vector<Indices> result;
  for (const PlannedBucket& bucket : plan) result.push_back(bucket.gradients);
  return result;
}

std::vector<Indices> plan_of(const std::vector<GradientDescription>& gradients,
                             const std::vector<std::size_t>& limits, const Indices& order = {}) {
  return members(plan_buckets(gradients, limits, order));
}

GradientDescription u8(std::size_t bytes) { return {"", DType::u8, bytes}; }
GradientDescription i8(std::size_t bytes) { return {"", DType::i8, bytes}; }

TEST(BucketPlan, ReachingTheLimitClosesABucket) {
  EXPECT_EQ(plan_of({u8(50), u8(50), u8(50)}, {100}), (std::vector<Indices>{{0, 1}, {2}}));
}

TEST(BucketPlan, OneByteBelowTheLimitKeepsItOpenForOneMoreGradient) {
  EXPECT_EQ(plan_of({u8(50), u8(49), u8(500), u8(1)}, {100}),
            (std::vector<Indices>{{0, 1, 2}, {3}}));
}

TEST(BucketPlan, AGradientIsNeverSplit) {
  EXPECT_EQ(plan_of({u8(1000)}, {100}), (std::vector<Indices>{{0}}));
}

TEST(BucketPlan, TheLastLimitHoldsForAllFurtherBuckets) {
  const std::vector<GradientDescription> gradients(7, u8(10));
  EXPECT_EQ(plan_of(gradients, {10, 20}), (std::vector<Indices>{{0}, {1, 2}, {3, 4}, {5, 6}}));
}

TEST(BucketPlan, EachDTypeHasItsOwnBucketAndStartsAtTheFirstLimit) {
  const std::vector<GradientDescription> gradients = {u8(10), i8(5), u8(10), i8(5), i8(5)};
  EXPECT_EQ(plan_of(gradients, {10, 100}), (std::vector<Indices>{{0}, {1, 3}, {2}, {4}}));
}

TEST(BucketPlan, SoHasEachDevice) {
  std::vector<GradientDescription> gradients(5, u8(10));
  gradients[1].device = gradients[3].device = 1;
  EXPECT_EQ(plan_of(gradients, {10, 20}), (std::vector<Indices>{{0}, {1}, {2, 4}, {3}}));
}

TEST(BucketPlan, SparseGradientsStandAloneWithoutLimit) {
  const std::vector<GradientDescription> gradients(3, u8(1));
  const BucketPlan plan =
      plan_buckets(gradients, std::vector<std::size_t>{100}, {}, {false, true, false});
  EXPECT_EQ(members(plan), (std::vector<Indices>{{0, 2}, {1}}));
  EXPECT_EQ(plan[0].limit_bytes, 100u);
  EXPECT_EQ(plan[1].limit_bytes, 0u);
}

TEST(BucketPlan, AGivenOrderIsKept) {
  EXPECT_EQ(plan_of({u8(10), u8(10), u8(10)}, {10, 20}, {2, 0, 1}),
            (std::vector<Indices>{{2}, {0, 1}}));
}

TEST(BucketPlan, UnfinishedBucketsOfAnOrderFollowTheirLastGradient) {
  const std::vector<GradientDescription> gradients = {u8(1), i8(1), u8(1)};
  EXPECT_EQ(plan_of(gradients, {100}, {2, 1, 0}), (std::vector<Indices>{{1}, {2, 0}}));
}

TEST(BucketPlan, TheSmallBucketCanBeTheLast) {
  const std::vector<GradientDescription> gradients(5, u8(10));
  const std::vector<std::size_t> limits = {10, 20};
  const Indices ready = {4, 3, 2, 1, 0};
  EXPECT_EQ(members(plan_for_ready_order(gradients, limits, ready, false)),
            (std::vector<Indices>{{4}, {3, 2}, {1, 0}}));
  EXPECT_EQ(members(plan_for_ready_order(gradients, limits, ready, true)),
            (std::vector<Indices>{{4, 3}, {2, 1}, {0}}));
}

TEST(BucketPlan, DelayedGradientsComeLastInBucketsOfTheirOwn) {
  std::vector<GradientDescription> gradients(5, u8(10));
  gradients[3].delayed = true;
  gradients[1].delayed = true;
  const std::vector<std::size_t> limits = {10, 20};
  const Indices ready = {4, 3, 2, 1, 0};
  EXPECT_EQ(members(plan_for_ready_order(gradients, limits, ready, false)),
            (std::vector<Indices>{{4}, {2, 0}, {3}, {1}}));
  EXPECT_EQ(members(plan_for_ready_order(gradients, limits, ready, true)),
            (std::vector<Indices>{{4, 2}, {0}, {3}, {1}}));
  for (GradientDescription& gradient : gradients) gradient.delayed = true;
  EXPECT_EQ(members(plan_for_ready_order(gradients, limits, ready, false)),
            (std::vector<Indices>{{4}, {3, 2}, {1, 0}}));
}

}  // namespace
}  // namespace stretto::reducer
