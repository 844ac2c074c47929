// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stretto/reducer/communication_hook.h"

namespace stretto::reducer {

// Gradients that are reduced together, as indices into the list that was planned.
struct PlannedBucket {
  std::vector<std::size_t> gradients;
  std::size_t limit_bytes = 0;  // The limit that held for it.

  friend bool operator==(const PlannedBucket&, const PlannedBucket&) = default;
};

// Buckets in the order of their reduction.
using BucketPlan = std::vector<PlannedBucket>;

// How a reducer has come to its buckets, and when it may form others. With it another reducer can
// go on with the same buckets, and rebuild them in the same steps.
struct BucketOrder {
  std::vector<std::size_t> gradients;  // All gradients, in the order that was planned.
  std::vector<bool> unused_somewhere;  // For each gradient, since the last rebuild.
  std::uint64_t planned_hash = 0;      // Of an order that is not to be planned again.
  std::uint64_t last_hash = 0;         // Of the order of the last step, on rank 0.
  std::uint64_t rebuilds = 0;
  std::uint64_t steps_before_next = 0;
};

inline constexpr std::size_t kFirstBucketBytes = std::size_t{1} << 20;
inline constexpr std::size_t kBucketBytes = std::size_t{25} << 20;

// Follows PyTorch's rule (compute_bucket_assignment_by_size) exactly, so that a job moved from
// PyTorch has the same buckets. Gradients are taken in `order` (indices, all different). For each
// dtype of each device one bucket is open at a time. The gradient that brings it to its limit or
// beyond closes it, so a bucket may exceed the limit by one gradient; a gradient is never split.
// The k-th bucket of a dtype and device has the k-th limit, later ones the last limit.
// `limits_bytes` must not be empty.
//
// Closed buckets come first, in the order in which they were closed; then those left open, ordered
// by the position of their last gradient (PyTorch leaves the order of these to a hash table).
//
// With `last_bucket_small` the limits count from the end: the first limit, usually the smallest,
// bounds the bucket that is reduced last, with which no computation is left to overlap
// (DDP_SET_LAST_BUCKET_CAP in PyTorch).
BucketPlan plan_buckets(std::span<const GradientDescription> gradients,
                        std::span<const std::size_t> limits_bytes,
                        std::span<const std::size_t> order, bool last_bucket_small = false);

// The plan for gradients that become ready in `ready_order`. Delayed gradients come last, in
// buckets of their own, for which the limits are counted from the first again.
BucketPlan plan_for_ready_order(std::span<const GradientDescription> gradients,
                                std::span<const std::size_t> limits_bytes,
                                std::span<const std::size_t> ready_order, bool last_bucket_small);

}  // namespace stretto::reducer
