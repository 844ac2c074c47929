// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a reducer forms its buckets, and when it forms others.

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <utility>

#include "stretto/base/check.h"
#include "stretto/base/content_hash.h"
#include "stretto/base/log.h"
#include "stretto/base/refuse.h"
#include "stretto/base/round_up.h"
#include "stretto/reducer/reducer.h"

namespace stretto {
namespace {

constexpr std::size_t kAlignment = 64;  // Bytes: a cache line, and the widest vector register.
constexpr std::uint64_t kStepsBetweenRebuilds = 8;  // Doubled with each rebuild.

// Whether `order`, which comes from another rank or a file, names each of `count` gradients once.
bool is_permutation(const std::vector<std::size_t>& order, std::size_t count) {
  std::vector<bool> seen(count, false);
  for (const std::size_t index : order) {
    if (index >= count || seen[index]) return false;
    seen[index] = true;
  }
  return order.size() == count;
}

std::uint64_t hash_of(const std::vector<std::size_t>& order) {
  return content_hash(std::as_bytes(std::span(order)));
}

}  // namespace

reducer::BucketPlan Reducer::plan_for(std::span<const std::size_t> order) const {
  return reducer::plan_for_ready_order(gradients_, options_.bucket_bytes, order,
                                       options_.last_bucket_small);
}

std::vector<Reducer::Bucket> Reducer::allocate_buckets(const reducer::BucketPlan& plan) const {
  std::vector<Bucket> buckets(plan.size());
  for (std::size_t b = 0; b < plan.size(); ++b) {
    std::size_t bytes = 0;
    for (const std::size_t index : plan[b].gradients) {
      bytes += round_up(gradients_[index].count * size_bytes(gradients_[index].dtype), kAlignment);
    }
    bytes = std::max(bytes, kAlignment);  // Gradients without elements still take part.
    const DType dtype = gradients_[plan[b].gradients.front()].dtype;
    Bucket& bucket = buckets[b];
    bucket.memory = std::make_shared<Memory>(options_.memory->allocate(communicator_, bytes));
    bucket.view = View(bucket.memory->bytes().data(), bytes / size_bytes(dtype), dtype);
    bucket.silent.resize(plan[b].gradients.size());
    bucket.uncomputed.resize(plan[b].gradients.size());
    std::size_t offset = 0;
    for (const std::size_t index : plan[b].gradients) {
      const View& view = bucket.gradient_views.emplace_back(bucket.view.data + offset,
                                                            gradients_[index].count, dtype);
      offset += round_up(view.bytes(), kAlignment);
    }
  }
  return buckets;
}

// Gives each gradient its place in `buckets`, which are those of `plan`.
void Reducer::use_buckets(reducer::BucketPlan plan, std::vector<Bucket> buckets) {
  std::vector<std::size_t> places;  // For each bucket: its size and its gradients.
  for (const reducer::PlannedBucket& bucket : plan) {
    places.push_back(bucket.gradients.size());
    places.insert(places.end(), bucket.gradients.begin(), bucket.gradients.end());
  }
  for (std::size_t b = 0; b < plan.size(); ++b) {
    for (std::size_t i = 0; i < plan[b].gradients.size(); ++i) {
      Slot& slot = slots_[plan[b].gradients[i]];
      slot.bucket = b;
      slot.view = buckets[b].gradient_views[i];
    }
  }
  plan_hash_ = hash_of(places);
  plan_ = std::move(plan);
  buckets_ = std::move(buckets);
  reset_step();
}

// The order in which gradients become ready, as far as this rank knows. Gradients that some rank
// leaves out come last, because on that rank they hold up all buckets after them. Allocates nothing
// after the first step.
const std::vector<std::size_t>& Reducer::order_of_ranks() {
  order_of_ranks_.clear();
  for (const bool unused : {false, true}) {
    std::ranges::copy_if(ready_order_, std::back_inserter(order_of_ranks_),
                         [&](std::size_t i) { return order_.unused_somewhere[i] == unused; });
  }
  return order_of_ranks_;
}

// On rank 0, whose order counts: whether the order of this step makes another plan, and is that of
// the step before, too (not required for the first rebuild).
bool Reducer::wants_rebuild() {
  if (!options_.rebuild_buckets || communicator_.rank() != Rank(0)) return false;
  const std::vector<std::size_t>& order = order_of_ranks();
  const std::uint64_t hash = hash_of(order);
  const bool lasts = hash == std::exchange(order_.last_hash, hash) || order_.rebuilds == 0;
  if (!lasts || hash == order_.planned_hash || step_ < next_rebuild_step_) return false;
  if (plan_for(order) != plan_) return true;
  order_.planned_hash = hash;
  return false;
}

bool Reducer::rebuild() {
  throw_if_failed();
  if (!rebuild_due_) return false;
  rebuild_due_ = false;
  next_rebuild_step_ =
      step_ + (kStepsBetweenRebuilds << std::min<std::uint64_t>(order_.rebuilds, 32));
  ++order_.rebuilds;
  std::vector<std::size_t> order = order_of_ranks();
  order_.unused_somewhere.assign(gradients_.size(), false);
  std::vector<std::int32_t> wire(order.begin(), order.end());
  try {
    communicator_.broadcast(wire, {.timeout = options_.timeout}).wait();
  } catch (const Error& error) {
    fail(explained(error.status()));
    throw_if_failed();
  }
  order.assign(wire.begin(), wire.end());
  if (!is_permutation(order, gradients_.size())) {
    const Rank named = communicator_.job_rank(0);
    fail(Status(
        StatusCode::protocol,
        fmt::format("rank {} sent an order of gradients that is no permutation", named.value()),
        named));
    throw_if_failed();
  }
  order_.planned_hash = hash_of(order);  // Not tried again, whatever the outcome.
  bool moved = false;
  try {
    moved = form_buckets_together(order);
  } catch (const Error& error) {
    fail(explained(error.status()));
    throw_if_failed();
  } catch (const std::exception& error) {
    give_up(fmt::format("its buckets cannot be formed anew: {}", first_line(error.what())));
    throw;
  }
  if (moved) order_.gradients = std::move(order);
  return moved;
}

// Returns buckets with the current values; until the current buckets are freed, both need memory.
std::vector<Reducer::Bucket> Reducer::copy_buckets(const reducer::BucketPlan& plan) const {
  std::vector<Bucket> buckets = allocate_buckets(plan);
  for (std::size_t b = 0; b < plan.size(); ++b) {
    for (std::size_t i = 0; i < plan[b].gradients.size(); ++i) {
      options_.memory->copy(buckets[b].gradient_views[i].span(),
                            slots_[plan[b].gradients[i]].view.span());
    }
  }
  return buckets;
}

// If a rank has no memory for new buckets, all ranks keep the current ones: results are the same,
// only less communication is hidden.
bool Reducer::form_buckets_together(std::span<const std::size_t> order) {
  reducer::BucketPlan plan = plan_for(order);
  if (plan == plan_) return false;
  std::vector<Bucket> buckets;
  try {
    buckets = copy_buckets(plan);
  } catch (const std::exception& error) {
    log(LogLevel::warning, "rank {}: buckets keep their order, as others cannot be made: {}",
        communicator_.rank().value(), first_line(error.what()));
  }
  std::array<std::int32_t, 1> all_have_them = {buckets.empty() ? 0 : 1};
  communicator_
      .all_reduce(std::span(all_have_them), {.op = ReduceOp::min, .timeout = options_.timeout})
      .wait();
  if (all_have_them.front() == 0) return false;
  use_buckets(std::move(plan), std::move(buckets));
  return true;
}

reducer::BucketOrder Reducer::bucket_order() const {
  reducer::BucketOrder order = order_;
  order.steps_before_next = next_rebuild_step_ - std::min(step_, next_rebuild_step_);
  return order;
}

bool Reducer::restore(reducer::BucketOrder order) {
  throw_if_failed();
  STRETTO_CHECK(!step_open(), "buckets are restored inside step {}", step_ + 1);
  const bool is_whole = order.unused_somewhere.size() == gradients_.size();
  if (!is_whole || !is_permutation(order.gradients, gradients_.size())) {
    refuse("the order of buckets that is to be restored is not one of {} gradients",
           gradients_.size());
  }
  reducer::BucketPlan plan = plan_for(order.gradients);
  const bool moved = plan != plan_;
  if (moved) {
    std::vector<Bucket> buckets = copy_buckets(plan);  // If it throws, nothing has changed.
    use_buckets(std::move(plan), std::move(buckets));
  }
  next_rebuild_step_ = step_ + order.steps_before_next;
  rebuild_due_ = false;
  order_ = std::move(order);
  return moved;
}

}  // namespace stretto
