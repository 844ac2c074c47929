// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/reducer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/check.h"
#include "stretto/base/round_up.h"

namespace stretto {
namespace {

constexpr std::size_t kAlignment = 64;  // Bytes: a cache line, and the widest vector register.
constexpr std::size_t kNamesInMessage = 10;

void check_arguments(const std::vector<GradientDescription>& gradients,
                     const ReducerOptions& options) {
  if (gradients.empty()) {
    throw InvalidArgument(
        status_of(StatusCode::invalid_argument, "there are no gradients to reduce"));
  }
  if (options.bucket_bytes.empty()) {
    throw InvalidArgument(status_of(StatusCode::invalid_argument,
                                    "bucket_bytes is empty; it needs at least one limit"));
  }
  for (const GradientDescription& gradient : gradients) {
    if (!supports(options.op, gradient.dtype)) {
      throw InvalidArgument(
          status_of(StatusCode::invalid_argument,
                    "gradient {} is {}, which {} does not support; it supports {}", gradient.name,
                    name(gradient.dtype), name(options.op), supported_ops(gradient.dtype)));
    }
  }
}

std::string join_names(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kNamesInMessage);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// Whether `order` names each of `count` gradients once; it came from another rank.
bool is_permutation(const std::vector<std::int32_t>& order, std::size_t count) {
  std::vector<bool> seen(count, false);
  for (const std::int32_t index : order) {
    if (index < 0 || static_cast<std::size_t>(index) >= count || seen[index]) return false;
    seen[index] = true;
  }
  return order.size() == count;
}

}  // namespace

Reducer::Reducer(Communicator& communicator, std::vector<GradientDescription> gradients,
                 ReducerOptions options)
    : communicator_(communicator),
      gradients_(std::move(gradients)),
      options_(std::move(options)),
      poll_on_ready_(!communicator.has_progress_thread()),
      exceptions_when_made_(std::uncaught_exceptions()) {
  check_arguments(gradients_, options_);
  slots_ = std::vector<Slot>(gradients_.size());
  ready_order_.resize(gradients_.size());
  last_step_.ready_seconds.resize(gradients_.size());
  std::vector<std::size_t> expected_order(gradients_.size());
  std::iota(expected_order.rbegin(), expected_order.rend(), std::size_t{0});
  lay_out(reducer::plan_for_ready_order(gradient_sizes(), options_.bucket_bytes, expected_order,
                                        options_.last_bucket_small));
}

Reducer::~Reducer() {
  if (std::uncaught_exceptions() > exceptions_when_made_) abandon_step();
}

GradientStorage Reducer::gradient(std::size_t index) const {
  return {slots_[index].view, buckets_[slots_[index].bucket].memory};
}

std::vector<reducer::GradientSize> Reducer::gradient_sizes() const {
  std::vector<reducer::GradientSize> sizes;
  sizes.reserve(gradients_.size());
  for (const GradientDescription& gradient : gradients_) {
    sizes.push_back({gradient.dtype, gradient.count * size_bytes(gradient.dtype)});
  }
  return sizes;
}

// Allocates the buckets of `plan` and gives each gradient its place in them.
void Reducer::lay_out(reducer::BucketPlan plan) {
  std::vector<Bucket> buckets(plan.size());
  for (std::size_t b = 0; b < plan.size(); ++b) {
    std::size_t bytes = 0;
    for (const std::size_t index : plan[b].gradients) {
      bytes += round_up(gradients_[index].count * size_bytes(gradients_[index].dtype), kAlignment);
    }
    bytes = std::max(bytes, kAlignment);  // Gradients without elements still take part.
    const DType dtype = gradients_[plan[b].gradients.front()].dtype;
    Bucket& bucket = buckets[b];
    bucket.memory = std::make_shared<Memory>(communicator_.allocate_bytes(bytes));
    bucket.view = View(bucket.memory->bytes().data(), bytes / size_bytes(dtype), dtype);
    bucket.gradient_count = plan[b].gradients.size();
    bucket.pending.store(bucket.gradient_count, std::memory_order_relaxed);
    std::size_t offset = 0;
    for (const std::size_t index : plan[b].gradients) {
      slots_[index].bucket = b;
      slots_[index].view = View(bucket.view.data + offset, gradients_[index].count, dtype);
      offset += round_up(slots_[index].view.bytes(), kAlignment);
    }
  }
  plan_ = std::move(plan);
  buckets_ = std::move(buckets);
}

void Reducer::mark_ready(std::size_t index) {
  throw_if_failed();
  STRETTO_CHECK(index < slots_.size(), "gradient {} of {}", index, slots_.size());
  Slot& slot = slots_[index];
  if (slot.ready.exchange(true, std::memory_order_acq_rel)) {
    throw InvalidArgument(status_of(
        StatusCode::invalid_argument,
        "gradient {} became ready a second time before its step had ended. Either a second "
        "backward pass began before the first one was complete, or the parameter takes part both "
        "inside and outside of a checkpointed (re-entrant) part of the model",
        gradients_[index].name));
  }
  slot.ready_time = Clock::now();
  ready_order_[ready_count_.fetch_add(1, std::memory_order_acq_rel)] = index;
  if (buckets_[slot.bucket].pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    launch_full_buckets();
  }
  if (poll_on_ready_ && in_flight_.load(std::memory_order_relaxed)) communicator_.poll();
}

void Reducer::launch_full_buckets() {
  const std::lock_guard lock(launch_mutex_);
  while (next_bucket_ < buckets_.size() &&
         buckets_[next_bucket_].pending.load(std::memory_order_acquire) == 0) {
    Bucket& bucket = buckets_[next_bucket_];
    if (next_bucket_ == 0) first_launch_ = Clock::now();
    try {
      bucket.work =
          communicator_.all_reduce(bucket.view, {.op = options_.op, .timeout = options_.timeout});
    } catch (const Error& error) {
      fail(error.status());
      throw;
    }
    ++next_bucket_;
    in_flight_.store(true, std::memory_order_relaxed);
  }
  note_finished_buckets();
}

// Remembers when the newest finished bucket was first seen to be finished.
void Reducer::note_finished_buckets() {
  bool advanced = false;
  while (finished_buckets_ < next_bucket_ && buckets_[finished_buckets_].work.done()) {
    ++finished_buckets_;
    advanced = true;
  }
  if (advanced) last_end_ = Clock::now();
}

void Reducer::finalize() {
  throw_if_failed();
  if (!all_ready()) fail_unfinished_step();
  const TimePoint begin = Clock::now();
  {
    const std::lock_guard lock(launch_mutex_);
    note_finished_buckets();
  }
  const bool was_hidden = finished_buckets_ == buckets_.size();
  Status first_failure;
  for (Bucket& bucket : buckets_) {
    Status status = std::exchange(bucket.work, Work()).wait_status();
    if (first_failure.ok()) first_failure = std::move(status);
  }
  const TimePoint end = Clock::now();
  if (!first_failure.ok()) fail(first_failure);
  throw_if_failed();
  if (!was_hidden) last_end_ = end;
  record_step(begin, end);
  reset_step();
  rebuild_due_ = options_.rebuild_buckets && !rebuild_done_;
}

void Reducer::record_step(TimePoint finalize_time, TimePoint end) {
  const TimePoint first_ready = slots_[ready_order_.front()].ready_time;
  last_step_.backward_seconds = seconds(finalize_time - first_ready);
  last_step_.communication_seconds = seconds(last_end_ - first_launch_);
  last_step_.exposed_seconds = seconds(end - finalize_time);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    last_step_.ready_seconds[i] = seconds(slots_[i].ready_time - first_ready);
  }
}

void Reducer::reset_step() {
  for (Bucket& bucket : buckets_) {
    bucket.pending.store(bucket.gradient_count, std::memory_order_relaxed);
  }
  for (Slot& slot : slots_) slot.ready.store(false, std::memory_order_relaxed);
  next_bucket_ = 0;
  finished_buckets_ = 0;
  in_flight_.store(false, std::memory_order_relaxed);
  ready_count_.store(0, std::memory_order_release);
}

std::vector<std::string> Reducer::missing_names() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].ready.load(std::memory_order_acquire)) names.push_back(gradients_[i].name);
  }
  return names;
}

void Reducer::fail_unfinished_step() {
  const std::vector<std::string> names = missing_names();
  Status status = status_of(
      StatusCode::invalid_argument,
      "{} {} no gradient on rank {}: {}. A step needs all gradients of all ranks. Fix: let the "
      "loss "
      "depend on them, freeze them (requires_grad = false), or keep all but the last of several "
      "backward passes of a step inside no_sync()",
      names.size(), names.size() == 1 ? "parameter got" : "parameters got",
      communicator_.rank().value(), join_names(names));
  fail_on_all_ranks(std::move(status));
  throw_if_failed();
}

void Reducer::abandon_step() {
  if (!step_open() || failed_.load(std::memory_order_acquire)) return;
  fail_on_all_ranks(status_of(
      StatusCode::aborted,
      "an exception ended the backward pass of rank {} when {} of {} gradients were ready; what "
      "was thrown, only rank {} itself can say: see its output",
      communicator_.rank().value(), ready_count_.load(), gradients_.size(),
      communicator_.rank().value()));
}

void Reducer::fail_on_all_ranks(Status status) {
  communicator_.abort(std::string(status.message()));
  fail(std::move(status));
}

bool Reducer::rebuild() {
  throw_if_failed();
  if (!rebuild_due_) return false;
  rebuild_due_ = false;
  rebuild_done_ = true;
  std::vector<std::int32_t> wire(ready_order_.begin(), ready_order_.end());
  try {
    communicator_.broadcast(wire, {.timeout = options_.timeout}).wait();
  } catch (const Error& error) {
    fail(error.status());
    throw;
  }
  if (!is_permutation(wire, gradients_.size())) {
    fail(Status(StatusCode::protocol, "rank 0 sent an order of gradients that is no permutation",
                Rank(0)));
    throw_if_failed();
  }
  const std::vector<std::size_t> order(wire.begin(), wire.end());
  reducer::BucketPlan plan = reducer::plan_for_ready_order(gradient_sizes(), options_.bucket_bytes,
                                                           order, options_.last_bucket_small);
  if (plan == plan_) return false;
  // The old buckets stay alive until their values have moved.
  std::vector<GradientStorage> old;
  for (std::size_t i = 0; i < slots_.size(); ++i) old.push_back(gradient(i));
  lay_out(std::move(plan));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (old[i].view.count == 0) continue;
    std::memcpy(slots_[i].view.data, old[i].view.data, old[i].view.bytes());
  }
  return true;
}

void Reducer::fail(Status status) {
  const std::lock_guard lock(failure_mutex_);
  if (failure_.ok()) failure_ = std::move(status);
  failed_.store(true, std::memory_order_release);
}

void Reducer::throw_if_failed() const {
  if (!failed_.load(std::memory_order_acquire)) [[likely]]
    return;
  const std::lock_guard lock(failure_mutex_);
  failure_.or_throw();
}

}  // namespace stretto
