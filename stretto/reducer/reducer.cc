// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/reducer.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/check.h"
#include "stretto/base/refuse.h"
#include "stretto/base/stream_guard.h"
#include "stretto/reducer/bucket_size.h"

namespace stretto {
namespace {

// Making so many bytes of gradients takes longer than the microsecond in which mark_ready() looks
// at the clock and lets communication advance. Each gradient counts as kLeastBytes at least.
constexpr std::size_t kBytesPerLook = std::size_t{32} << 10;
constexpr std::size_t kLeastBytes = 512;

void check_arguments(const std::vector<GradientDescription>& gradients,
                     const ReducerOptions& options) {
  if (options.bucket_bytes.empty()) refuse("bucket_bytes is empty; it needs at least one limit");
  if (options.bucket_bytes == kAutomaticBucketBytes) {
    refuse(
        "bucket_bytes is automatic, which is for DistributedDataParallel: use "
        "measured_bucket_bytes()");
  }
  for (const GradientDescription& gradient : gradients) {
    if (supports(options.op, gradient.dtype)) continue;
    refuse("gradient {} is {}, which {} does not support; it supports {}", gradient.name,
           name(gradient.dtype), name(options.op), supported_ops(gradient.dtype));
  }
}

// Claims the hook, and returns `options` with the hook that reduces buckets.
ReducerOptions with_own_hook(ReducerOptions options) {
  if (options.hook_owner == nullptr) options.hook_owner = std::make_shared<int>();
  options.hook->claim(options.hook_owner, options.timeout);
  if (options.mean_division == MeanDivision::after_sum) return options;
  options.hook = std::make_shared<DividedReduction>(options.mean_division, std::move(options.hook));
  return options;
}

}  // namespace

Reducer::Reducer(Communicator& communicator, std::vector<GradientDescription> gradients,
                 ReducerOptions options)
    : communicator_(communicator),
      gradients_(std::move(gradients)),
      options_(with_own_hook(std::move(options))),
      poll_on_ready_(!communicator.has_progress_thread()),
      exceptions_when_made_(std::uncaught_exceptions()),
      report_(communicator, gradients_.size()) {
  check_arguments(gradients_, options_);
  step_ = options_.steps;
  slots_ = std::vector<Slot>(gradients_.size());
  ready_order_.resize(gradients_.size());
  order_of_ranks_.reserve(gradients_.size());
  last_step_.ready_seconds.resize(gradients_.size());
  order_.unused_somewhere.resize(gradients_.size());
  order_.gradients.resize(gradients_.size());
  std::iota(order_.gradients.rbegin(), order_.gradients.rend(), std::size_t{0});
  reducer::BucketPlan plan = plan_for(order_.gradients);
  std::vector<Bucket> buckets = allocate_buckets(plan);
  use_buckets(std::move(plan), std::move(buckets));
  options_.hook->attach(communicator_, gradients_);
}

// After the end of a step, devices may still have work. It is waited for even if an exception
// unwinds the stack later.
Reducer::~Reducer() {
  const bool is_cut_off = step_open() || in_flight_.load(std::memory_order_relaxed);
  if (std::uncaught_exceptions() > exceptions_when_made_ && is_cut_off) {
    abandon_step();
  } else {
    for (Bucket& bucket : buckets_) (void)bucket.work.wait_status();
  }
}

GradientStorage Reducer::gradient(std::size_t index) const {
  return {slots_[index].view, buckets_[slots_[index].bucket].memory};
}

FullBucket Reducer::full(std::size_t bucket) const {
  return {.index = bucket,
          .of_count = buckets_.size(),
          .step = step_,
          .view = buckets_[bucket].view,
          .gradients = plan_[bucket].gradients,
          .gradient_views = buckets_[bucket].gradient_views,
          .silent = buckets_[bucket].silent,
          .op = options_.op,
          .timeout = options_.timeout,
          .memory = options_.memory.get(),
          .uncomputed = buckets_[bucket].uncomputed};
}

void Reducer::mark_ready(std::size_t index) {
  throw_if_failed();
  STRETTO_CHECK(index < slots_.size(), "gradient {} of {}", index, slots_.size());
  options_.memory->publish();
  Slot& slot = slots_[index];
  if (slot.frozen) {
    refuse("gradient {} was computed although it is frozen", gradients_[index].name);
  }
  if (slot.ready.exchange(true, std::memory_order_acq_rel)) {
    slot.repeated.store(true, std::memory_order_relaxed);
    return;
  }
  const std::size_t number = ready_count_.fetch_add(1, std::memory_order_acq_rel);
  ready_order_[number] = index;
  const bool full = buckets_[slot.bucket].pending.fetch_sub(1, std::memory_order_acq_rel) == 1;
  const bool launches =
      full && (options_.hook->finishes_early() || !options_.pass_waits || !options_.pass_waits());
  // Threads may overwrite each other's bytes here; then they look a little later.
  const std::size_t bytes =
      unseen_bytes_.load(std::memory_order_relaxed) + std::max(slot.view.bytes(), kLeastBytes);
  const bool look = launches || number == 0 || bytes >= kBytesPerLook;
  unseen_bytes_.store(look ? 0 : bytes, std::memory_order_relaxed);
  if (!look) {
    slot.ready_time = last_look_.load(std::memory_order_relaxed);
    return;
  }
  slot.ready_time = Clock::now();
  last_look_.store(slot.ready_time, std::memory_order_relaxed);
  communicate(launches, slot.ready_time);
}

// If a bucket is `full`, starts what can start now; lets the rest advance.
void Reducer::communicate(bool full, TimePoint begin) {
  if (full) launch_full_buckets();
  const bool poll = poll_on_ready_ && in_flight_.load(std::memory_order_relaxed);
  if (poll) {
    communicator_.poll();
    if (launch_mutex_.try_lock()) {  // Else the holder of the lock does this.
      const MutexLock lock(launch_mutex_, std::adopt_lock);
      end_finished_buckets();
    }
  }
  if (full || poll) {
    inside_ticks_.fetch_add((Clock::now() - begin).count(), std::memory_order_relaxed);
  }
}

void Reducer::set_frozen(std::size_t index, bool frozen, bool in_use) {
  Slot& slot = slots_[index];
  const bool was_awaited = slot.is_awaited();
  slot.in_use = in_use;
  if (slot.frozen != frozen) {
    throw_if_failed();  // A step that has failed is still open.
    STRETTO_CHECK(!step_open(), "gradient {} is frozen or unfrozen inside a step", index);
    slot.frozen = frozen;
    frozen_count_ += frozen ? 1 : std::size_t(-1);
  }
  if (slot.is_awaited() == was_awaited) return;
  buckets_[slot.bucket].pending.fetch_add(was_awaited ? std::size_t(-1) : 1,
                                          std::memory_order_relaxed);
}

void Reducer::set_epoch(std::uint64_t epoch, std::uint64_t steps_before) {
  epoch_ = epoch;
  steps_before_epoch_ = steps_before;
}

void Reducer::launch_full_buckets() {
  const MutexLock lock(launch_mutex_);
  for (; next_bucket_ < buckets_.size(); ++next_bucket_) {
    const Bucket& bucket = buckets_[next_bucket_];
    if (bucket.left_out) continue;
    if (bucket.pending.load(std::memory_order_acquire) != 0) break;
    launch(next_bucket_);
  }
  end_finished_buckets();
}

void Reducer::launch(std::size_t index) {
  Bucket& bucket = buckets_[index];
  std::ranges::fill(bucket.silent, std::uint8_t{0});
  std::ranges::fill(bucket.uncomputed, std::uint8_t{0});
  const StreamGuard none(nullptr);  // The memory makes the default stream wait for the values.
  try {
    if (closing_ || frozen_count_ > 0) keep_unused_values(index);
    bucket.launch = Clock::now();
    options_.memory->publish();
    bucket.work = options_.hook->start(communicator_, full(index));
  } catch (const Error& error) {
    // The others wait for this bucket, unless they know of the failure already.
    if (!communicator_.has_failed()) communicator_.abort(std::string(error.status().message()));
    fail(explained(error.status()));
    throw_if_failed();
  } catch (const std::exception& error) {
    abandon_step(error.what());  // The others wait for this bucket.
    throw;
  }
  in_flight_.store(true, std::memory_order_relaxed);
}

// Keeps the values of gradients that are not ready: a gradient that all ranks leave out must not
// change, and the mean of equal values can be rounded.
void Reducer::keep_unused_values(std::size_t bucket) {
  for (std::size_t place = 0; place < plan_[bucket].gradients.size(); ++place) {
    const std::size_t index = plan_[bucket].gradients[place];
    if (slots_[index].ready.load(std::memory_order_acquire)) continue;
    BucketMemory& memory = *options_.memory;
    Slot& slot = slots_[index];
    const auto bytes = slot.view.span();
    const bool is_kept = !without_data_ || options_.find_unused || slot.frozen;
    if (is_kept) {
      kept_.push_back(index);
      if (slot.kept.bytes().size() != bytes.size()) slot.kept = memory.allocate_copy(bytes.size());
      memory.copy(slot.kept.bytes(), bytes);
    }
    if (without_data_) memory.clear(bytes);
    const bool is_silent = without_data_ || slot.frozen || memory.is_zero(bytes);
    buckets_[bucket].silent[place] = is_silent ? 1 : 0;
    buckets_[bucket].uncomputed[place] = is_kept && !slot.frozen ? 1 : 0;
  }
}

void Reducer::restore_unused_values() {
  const MutexLock lock(launch_mutex_);
  std::vector<std::size_t> forgotten;
  for (const std::size_t index : kept_) {
    const Slot& slot = slots_[index];
    if (was_used(index)) continue;
    options_.memory->copy(slot.view.span(), slot.kept.bytes());
    if (!slot.frozen) forgotten.push_back(index);
  }
  if (forgotten.empty()) return;
  try {
    options_.hook->forget(forgotten);
  } catch (const std::exception& error) {
    abandon_step(error.what());  // The others go on.
    throw;
  }
}

// Ends the buckets in flight that are reduced. As backward still runs, it hides the hook's work on
// them, too.
void Reducer::end_finished_buckets() {
  if (!options_.hook->finishes_early()) return;
  for (; finished_buckets_ < next_bucket_; ++finished_buckets_) {
    Bucket& bucket = buckets_[finished_buckets_];
    if (bucket.left_out) continue;
    if (!bucket.work.done()) break;
    end_bucket(finished_buckets_);
  }
}

// Waits for the work of the bucket. After a failure, finish() of the hook is not called any more.
void Reducer::end_bucket(std::size_t index) {
  Bucket& bucket = buckets_[index];
  const auto note = [&](Status status) STRETTO_REQUIRES(launch_mutex_) {
    if (bucket_failure_.ok()) bucket_failure_ = std::move(status);
  };
  const auto fail_alone = [&](const std::exception& error) STRETTO_REQUIRES(launch_mutex_) {
    Status failure = status_of(StatusCode::aborted,
                               "what follows the reduction of bucket {} of {} has failed: {}",
                               index, buckets_.size(), first_line(error.what()));
    if (bucket_failure_.ok()) communicator_.abort(std::string(failure.message()));
    note(std::move(failure));
  };
  try {
    Status status = options_.memory->end(bucket.work);
    bucket.end = Clock::now();
    note(std::move(status));
    if (bucket_failure_.ok()) options_.hook->finish(full(index));
  } catch (const Error& error) {  // end_step() tells the others of it.
    note(error.status());
  } catch (const std::exception& error) {
    fail_alone(error);
  }
  if (!bucket_failure_.ok() || !options_.on_reduced) return;
  try {
    options_.on_reduced(full(index));
  } catch (const std::exception& error) {
    fail_alone(error);
  }
}

void Reducer::finalize_without_data() {
  throw_if_failed();
  STRETTO_CHECK(!step_open(), "{} gradients are ready without data", ready_count_.load());
  end_step(/*with_data=*/false);
}

void Reducer::end_step(bool with_data) {
  throw_if_failed();
  const TimePoint begin = Clock::now();
  close_buckets(with_data);
  write_report(with_data);
  Status failure;
  try {
    failure = wait_for_buckets(report_.exchange(options_.timeout));
    if (failure.ok() && report_.same_position()) failure = reduce_left_out();
  } catch (const Error& error) {
    failure = error.status();
  }
  if (!failure.ok()) {
    tell_others(failure);
    fail(explained(failure));
  }
  throw_if_failed();
  record_step(begin, Clock::now());
  restore_unused_values();
  rebuild_due_ = requested(Request::rebuild);
  choose_left_out();
  ++step_;
  reset_step();
  judge_report();
}

// Gradients that are not ready now will not become so: their buckets are reduced as they are, or as
// zeros.
void Reducer::close_buckets(bool with_data) {
  std::size_t at = ready_count_.load(std::memory_order_acquire);
  if (at < slots_.size()) {
    for (const reducer::PlannedBucket& bucket : plan_) {
      for (const std::size_t index : bucket.gradients) {
        if (!is_ready(index)) ready_order_[at++] = index;
      }
    }
  }
  {
    const MutexLock lock(launch_mutex_);
    closing_ = true;
    without_data_ = !with_data;
    for (Bucket& bucket : buckets_) bucket.pending.store(0, std::memory_order_relaxed);
  }
  launch_full_buckets();
}

void Reducer::write_report(bool with_data) {
  using Use = reducer::StepReport::Use;
  report_.begin({options_.number, step_ + 1, epoch_, steps_before_epoch_, plan_hash_});
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].changed) report_.say(i, Use::changed);
    if (slots_[i].repeated.load(std::memory_order_relaxed)) report_.say(i, Use::repeated);
    if (!with_data) continue;  // This rank does not know what others have frozen since.
    const Use arrived = is_ready(i) ? Use::used : Use::unused;
    report_.say(i, slots_[i].frozen ? Use::frozen : arrived);
  }
  if (with_data && wants_rebuild()) request(Request::rebuild);
}

// Returns the first failure, if there is one.
Status Reducer::wait_for_buckets(Work report) {
  const MutexLock lock(launch_mutex_);
  for (; finished_buckets_ < buckets_.size(); ++finished_buckets_) {
    if (!buckets_[finished_buckets_].left_out) end_bucket(finished_buckets_);
  }
  const Status failure = bucket_failure_;
  Status status = report.wait_status();
  return failure.ok() ? status : failure;
}

bool Reducer::is_used(const reducer::PlannedBucket& bucket) const {
  return std::ranges::any_of(bucket.gradients, [this](std::size_t i) { return was_used(i); });
}

// Reduces the buckets that were left out although some rank has used them.
Status Reducer::reduce_left_out() {
  const MutexLock lock(launch_mutex_);
  const auto is_wanted = [&](std::size_t b) { return buckets_[b].left_out && is_used(plan_[b]); };
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (is_wanted(b)) launch(b);
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (is_wanted(b)) end_bucket(b);
  }
  return bucket_failure_;
}

// Chooses the buckets to leave out of the next step: the same ones on all ranks, since all have the
// same report.
void Reducer::choose_left_out() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (report_.any_rank_says(i, reducer::StepReport::Use::unused)) {
      order_.unused_somewhere[i] = true;
    }
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    const bool used = is_used(plan_[b]);
    if (used && bucket.left_out) bucket.patience_steps *= 2;
    bucket.idle_steps = used ? 0 : bucket.idle_steps + 1;
    bucket.left_out = options_.hook->finishes_early() && bucket.idle_steps >= bucket.patience_steps;
  }
}

// All ranks come to the same conclusion, because they have the same report.
void Reducer::judge_report() {
  if (!report_.same_position()) {
    fail({StatusCode::mismatch, reducer::describe_positions(report_.gather(options_.timeout))});
    throw_if_failed();
  }
  if (!requested(Request::other_gradients)) judge_gradients();
}

void Reducer::judge_gradients() const {
  using Use = reducer::StepReport::Use;
  for (std::size_t i = 0; report_.any_rank_says(Use::frozen) && i < slots_.size(); ++i) {
    const bool wanted = was_used(i) || report_.any_rank_says(i, Use::unused);
    if (!wanted || !report_.any_rank_says(i, Use::frozen)) continue;
    const std::string text =
        reducer::describe_frozen(report_, report_.gather(options_.timeout), names());
    throw Mismatch(Status(StatusCode::mismatch, text));
  }
  for (const Use use : {Use::changed, Use::repeated}) {
    if (!report_.any_rank_says(use)) continue;
    refuse("{}",
           reducer::describe_other_counts(report_, report_.gather(options_.timeout), names(), use));
  }
  if (options_.find_unused || !report_.any_rank_says(Use::unused)) return;
  refuse("{}", reducer::describe_missing(report_, report_.gather(options_.timeout), names()));
}

void Reducer::record_step(TimePoint begin, TimePoint end) {
  const bool any = step_open();
  const TimePoint first_ready = any ? slots_[ready_order_.front()].ready_time : begin;
  const auto since = [&](TimePoint time) { return seconds(time - first_ready); };
  last_step_.step = step_ + 1;
  last_step_.begin = first_ready;
  last_step_.backward_seconds = since(begin);
  const Duration inside(inside_ticks_.load(std::memory_order_relaxed));
  last_step_.exposed_seconds = seconds(end - begin + inside);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    last_step_.ready_seconds[i] = is_ready(i) ? since(slots_[i].ready_time) : -1;
  }
  last_step_.bytes = 0;
  last_step_.communication_seconds = 0;
  last_step_.bucket_gradients.resize(buckets_.size());
  last_step_.launch_seconds.resize(buckets_.size());
  last_step_.end_seconds.resize(buckets_.size());
  TimePoint first_launch = TimePoint::max(), last_end = TimePoint::min();
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    const bool is_reduced = bucket.launch != TimePoint();
    last_step_.bucket_gradients[b] = plan_[b].gradients.size();
    last_step_.launch_seconds[b] = is_reduced ? since(bucket.launch) : -1;
    last_step_.end_seconds[b] = is_reduced ? since(bucket.end) : -1;
    if (!is_reduced) continue;
    last_step_.bytes += bucket.view.bytes();
    first_launch = std::min(first_launch, bucket.launch);
    last_end = std::max(last_end, bucket.end);
  }
  if (first_launch <= last_end) last_step_.communication_seconds = seconds(last_end - first_launch);
}

void Reducer::reset_step() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].pending.store(plan_[b].gradients.size(), std::memory_order_relaxed);
    buckets_[b].launch = TimePoint();
  }
  for (Slot& slot : slots_) {
    slot.ready.store(false, std::memory_order_relaxed);
    slot.repeated.store(false, std::memory_order_relaxed);
    slot.changed = false;
    if (!slot.is_awaited()) buckets_[slot.bucket].pending.fetch_sub(1, std::memory_order_relaxed);
  }
  const MutexLock lock(launch_mutex_);
  next_bucket_ = 0;
  finished_buckets_ = 0;
  bucket_failure_ = Status();
  closing_ = false;
  without_data_ = false;
  kept_.clear();
  inside_ticks_.store(0, std::memory_order_relaxed);
  in_flight_.store(false, std::memory_order_relaxed);
  ready_count_.store(0, std::memory_order_release);
}

std::vector<std::string> Reducer::names() const {
  std::vector<std::string> names;
  for (const GradientDescription& gradient : gradients_) names.push_back(gradient.name);
  return names;
}

}  // namespace stretto
