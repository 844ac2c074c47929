// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/bucket_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "stretto/base/check.h"

namespace stretto::reducer {
namespace {

// The bucket of one dtype and device that is being filled.
struct OpenBucket {
  PlannedBucket bucket;
  std::size_t bytes = 0;
  std::size_t limit_index = 0;
  std::size_t last_position = 0;  // Of its newest gradient in the order of planning.
};

class BucketPlanner {
 public:
  BucketPlanner(std::span<const GradientDescription> gradients,
                std::span<const std::size_t> limits_bytes)
      : gradients_(gradients), limits_bytes_(limits_bytes) {}

  void add(std::size_t index, std::size_t position) {
    const GradientDescription& gradient = gradients_[index];
    OpenBucket& open = open_[{gradient.dtype, gradient.device}];
    open.bucket.gradients.push_back(index);
    open.bucket.limit_bytes = limits_bytes_[open.limit_index];
    open.bytes += gradient.count * size_bytes(gradient.dtype);
    open.last_position = position;
    if (open.bytes >= open.bucket.limit_bytes) close(open);
  }

  BucketPlan finish() {
    std::map<std::size_t, PlannedBucket> left;  // By the positions of their last gradients.
    for (auto& [key, open] : open_) {
      if (!open.bucket.gradients.empty()) left[open.last_position] = std::move(open.bucket);
    }
    for (auto& [position, bucket] : left) plan_.push_back(std::move(bucket));
    return std::move(plan_);
  }

 private:
  void close(OpenBucket& open) {
    plan_.push_back(std::move(open.bucket));
    open.bucket = {};
    open.bytes = 0;
    open.limit_index = std::min(open.limit_index + 1, limits_bytes_.size() - 1);
  }

  std::span<const GradientDescription> gradients_;
  std::span<const std::size_t> limits_bytes_;
  std::map<std::pair<DType, int>, OpenBucket> open_;
  BucketPlan plan_;
};

}  // namespace

BucketPlan plan_buckets(std::span<const GradientDescription> gradients,
                        std::span<const std::size_t> limits_bytes,
                        std::span<const std::size_t> order, bool last_bucket_small) {
  STRETTO_CHECK(!limits_bytes.empty(), "a plan needs at least one limit");
  STRETTO_CHECK(order.size() <= gradients.size(), "{} positions, {} gradients", order.size(),
                gradients.size());
  std::vector<std::size_t> planned(order.begin(), order.end());
  if (last_bucket_small) std::ranges::reverse(planned);
  BucketPlanner planner(gradients, limits_bytes);
  for (std::size_t i = 0; i < planned.size(); ++i) planner.add(planned[i], i);
  BucketPlan plan = planner.finish();
  if (!last_bucket_small) return plan;
  std::ranges::reverse(plan);
  for (PlannedBucket& bucket : plan) std::ranges::reverse(bucket.gradients);
  return plan;
}

BucketPlan plan_for_ready_order(std::span<const GradientDescription> gradients,
                                std::span<const std::size_t> limits_bytes,
                                std::span<const std::size_t> ready_order, bool last_bucket_small) {
  std::vector<std::size_t> order(ready_order.begin(), ready_order.end());
  const auto delayed = std::stable_partition(
      order.begin(), order.end(), [&](std::size_t index) { return !gradients[index].delayed; });
  BucketPlan plan =
      plan_buckets(gradients, limits_bytes, {order.begin(), delayed}, last_bucket_small);
  for (PlannedBucket& bucket :
       plan_buckets(gradients, limits_bytes, {delayed, order.end()}, last_bucket_small)) {
    plan.push_back(std::move(bucket));
  }
  return plan;
}

}  // namespace stretto::reducer
