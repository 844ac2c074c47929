// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/bucket_plan.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

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

// One case of tests/golden/bucket_plan.txt, see make_bucket_plan.py there.
struct Case {
  std::vector<GradientDescription> gradients;
  std::vector<std::size_t> limits;
  std::vector<std::size_t> order;
};

template <class T>
std::vector<T> numbers(std::istringstream& line) {
  std::vector<T> result;
  for (T value; line >> value;) result.push_back(value);
  return result;
}

// Parses the tensors of a case; its other fields stay empty.
Case case_of_tensors(std::istringstream& line) {
  Case result;
  std::string dtype_name;
  std::size_t count = 0;
  while (line >> dtype_name >> count) {
    const auto dtypes = {DType::f16, DType::f32, DType::f64};
    const auto* const dtype =
        std::ranges::find(dtypes, dtype_name, [](DType each) { return name(each); });
    if (dtype == dtypes.end()) {
      ADD_FAILURE() << "unknown dtype " << dtype_name;
    } else {
      result.gradients.push_back({"", *dtype, count});
    }
  }
  return result;
}

BucketPlan buckets(std::istringstream& line) {
  BucketPlan plan;
  for (std::string text; std::getline(line, text, '|');) {
    std::istringstream bucket(text);
    plan.emplace_back();
    bucket >> plan.back().limit_bytes;
    plan.back().gradients = numbers<std::size_t>(bucket);
  }
  return plan;
}

// If PyTorch has no order, it takes the tensors as they are listed, and sorts buckets by their
// first tensor.
BucketPlan plan_of_case(const Case& given) {
  if (!given.order.empty()) return plan_buckets(given.gradients, given.limits, given.order);
  std::vector<std::size_t> all(given.gradients.size());
  std::iota(all.begin(), all.end(), 0);
  BucketPlan plan = plan_buckets(given.gradients, given.limits, all);
  std::ranges::sort(plan, {}, [](const PlannedBucket& each) { return each.gradients.front(); });
  return plan;
}

TEST(BucketPlanGolden, EqualsPyTorchs) {
  std::ifstream file(STRETTO_SOURCE_DIR "/tests/golden/bucket_plan.txt");
  ASSERT_TRUE(file) << "bucket_plan.txt is missing";
  Case current;
  int cases = 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string word;
    line >> word;
    if (word == "tensors") current = case_of_tensors(line);
    if (word == "limits") current.limits = numbers<std::size_t>(line);
    if (word == "order") current.order = numbers<std::size_t>(line);
    if (word != "buckets") continue;
    EXPECT_EQ(plan_of_case(current), buckets(line)) << "case " << cases;
    ++cases;
  }
  EXPECT_EQ(cases, 16);
}

}  // namespace
}  // namespace stretto::reducer
