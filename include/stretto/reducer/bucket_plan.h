// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stretto/reducer/communication_hook.h"

namespace stretto::reducer {

// Gradients that travel together, as indices into the list that was planned.
struct PlannedBucket {
  std::vector<std::size_t> gradients;
  std::size_t limit_bytes = 0;  // The limit that held for it.

  friend bool operator==(const PlannedBucket&, const PlannedBucket&) = default;
};

// In the order in which buckets are reduced.
using BucketPlan = std::vector<PlannedBucket>;

// How a reducer has come to its buckets, and when it may form others: what another one needs to go
// on with the same buckets in the same steps.
struct BucketOrder {
  std::vector<std::size_t> gradients;  // The order of all of them that the plan was made for.
  std::vector<bool> unused_somewhere;  // Of each gradient, since the last rebuild.
  std::uint64_t planned_hash = 0;      // Of an order that is not to be tried again.
  std::uint64_t last_hash = 0;         // Of the order of the last step, on rank 0.
  std::uint64_t rebuilds = 0;
  std::uint64_t steps_before_next = 0;
};

inline constexpr std::size_t kFirstBucketBytes = std::size_t{1} << 20;
inline constexpr std::size_t kBucketBytes = std::size_t{25} << 20;

// PyTorch's rule (compute_bucket_assignment_by_size), exactly, so that a job that moves from there
// finds the buckets it knows. Gradients are taken in `order` (different indices). Each dtype of
// each device fills one bucket at a time; a bucket is closed by the gradient that brings it to its
// limit or beyond, so it may exceed the limit by that one gradient, and a gradient is never split.
// The k-th of these buckets has the k-th limit, later ones the last. `limits_bytes` is not empty.
//
// Buckets stand in the order in which they were closed, then those left open, by the position of
// their last gradient (PyTorch leaves the order of the latter to a hash table).
//
// With `last_bucket_small` the limits count from the end: the first limit, usually the smallest,
// bounds the bucket that is reduced last and that nothing is left to overlap with
// (DDP_SET_LAST_BUCKET_CAP in PyTorch).
BucketPlan plan_buckets(std::span<const GradientDescription> gradients,
                        std::span<const std::size_t> limits_bytes,
                        std::span<const std::size_t> order, bool last_bucket_small = false);

// The plan for gradients that become ready in `ready_order`. Delayed gradients come last, in
// buckets of their own, for which limits count anew.
BucketPlan plan_for_ready_order(std::span<const GradientDescription> gradients,
                                std::span<const std::size_t> limits_bytes,
                                std::span<const std::size_t> ready_order, bool last_bucket_small);

}  // namespace stretto::reducer
