// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/bucket_plan.h"

#include <vector>

#include <gtest/gtest.h>

// tests/golden/bucket_plan_test.cc compares plans with PyTorch's; here stands what that cannot
// tell.
namespace stretto::reducer {
namespace {

using Indices = std::vector<std::size_t>;

std::vector<Indices> members(const BucketPlan& plan) {
  std::vector<Indices> result;
  for (const PlannedBucket& bucket : plan) result.push_back(bucket.gradients);
  return result;
}

std::vector<Indices> plan_of(const std::vector<GradientDescription>& gradients,
                             const std::vector<std::size_t>& limits, const Indices& order) {
  return members(plan_buckets(gradients, limits, order));
}

GradientDescription u8(std::size_t bytes) { return {"", DType::u8, bytes}; }
GradientDescription i8(std::size_t bytes) { return {"", DType::i8, bytes}; }

TEST(BucketPlan, EachDeviceHasItsOwnBucketsAndLimits) {
  std::vector<GradientDescription> gradients(5, u8(10));
  gradients[1].device = gradients[3].device = 1;
  EXPECT_EQ(plan_of(gradients, {10, 20}, {0, 1, 2, 3, 4}),
            (std::vector<Indices>{{0}, {1}, {2, 4}, {3}}));
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
