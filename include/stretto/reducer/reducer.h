// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/dtype.h"
#include "stretto/base/mutex.h"
#include "stretto/base/reduce_op.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/bucket_memory.h"
#include "stretto/reducer/bucket_plan.h"
#include "stretto/reducer/communication_hook.h"
#include "stretto/reducer/divided_reduction.h"
#include "stretto/reducer/step_report.h"
#include "stretto/reducer/step_statistics.h"

namespace stretto {

struct ReducerOptions {
  ReduceOp op = ReduceOp::mean;
  // Bytes that close the first, second, ... bucket of a dtype and device; the last number holds for
  // all later buckets. A small first bucket lets communication begin early.
  std::vector<std::size_t> bucket_bytes = {reducer::kFirstBucketBytes, reducer::kBucketBytes};
  // Apply the sizes from the bucket that is reduced last, see plan_for_ready_order().
  bool last_bucket_small = false;
  // Let rebuild() form new buckets in the order in which gradients became ready.
  bool rebuild_buckets = true;
  // Let a rank end a step without all gradients; if false, that is an error on all ranks.
  bool find_unused = false;
  // Returns whether backward may itself wait for other ranks (SyncBatchNorm, a hook of another
  // model) while ranks run different passes. If so, buckets of hooks that do not finish early start
  // after backward; otherwise one rank could wait in start() and another one elsewhere. Called for
  // each full bucket, on any thread, since other models may be created later. Null: never.
  std::function<bool()> pass_waits = {};
  // Where a mean is divided by the number of ranks.
  MeanDivision mean_division = MeanDivision::after_sum;
  // Identifies this reducer among those of the communicator; must be equal on all ranks. Ranks that
  // use two reducers in different orders then fail even if buckets have the same sizes.
  std::uint64_t number = 0;
  // Steps finalized by an earlier Reducer, of other gradients, from which this one counts on.
  std::uint64_t steps = 0;
  // Reduces the buckets; default: one all_reduce for each.
  std::shared_ptr<CommunicationHook> hook = std::make_shared<PlainReduction>();
  // Owner of the hook, see CommunicationHook::claim(). Null: this reducer.
  std::shared_ptr<const void> hook_owner = nullptr;
  // Where buckets lie. If not on the host, the hook must have an ending_in(), or know this memory.
  std::shared_ptr<BucketMemory> memory = std::make_shared<HostBuckets>();
  // Called for each bucket after finish() of the hook, on the same thread, to use its gradients
  // while backward goes on. An exception from it aborts the communicator.
  std::function<void(const FullBucket&)> on_reduced = {};
  // Time limit of each operation of a step. Default: the communicator's.
  std::optional<Duration> timeout = std::nullopt;
};

// Where a gradient lives: `view` lies in a bucket, which `owner` keeps alive even after a rebuild
// or after the reducer is destroyed.
struct GradientStorage {
  View view;
  std::shared_ptr<const void> owner;
};

// Reduces gradients over all ranks while the backward pass that makes them is still running. It
// treats gradients as bytes, not as tensors of some framework.
//
// A gradient's storage is its place in a bucket (ReducerOptions::memory). A bucket holds gradients
// of one dtype, each on cache lines of its own, aligned for vector code. A step is: write each
// gradient, call mark_ready() for it, and after backward call finalize(); then the storage holds
// the reduced values. Buckets are reduced in the plan's order, which is the same on all ranks; each
// starts as soon as it and all buckets before it are full.
//
// At the end of each step all ranks learn which rank has computed which gradients (StepReport). A
// gradient that only some ranks have is reduced if `find_unused` is set, else named on all ranks.
//
// If the hook finishes_early(), a bucket that no rank has used for two steps, frozen or not, is
// left out of the next ones (other hooks may need to see all buckets). If a rank then uses one of
// its gradients, the bucket is reduced at the end of that step, after the report, and next time it
// takes twice as many unused steps to leave it out. The first plan expects gradients in reverse
// order of the list, as backward passes make them.
//
// Threads: mark_ready() may be called from any thread, at the same time for different gradients.
// All other calls belong to one thread, and none may run at the same time as mark_ready().
//
// Failures throw the exceptions of base/error.h. Unless a call says otherwise, all later calls
// throw the first failure again, and storage holds a mixture of local and reduced values.
class Reducer {
 public:
  // Allocates the buckets, zeroed, and attaches the hook; collective if attach() of the hook is.
  // Throws InvalidArgument if `op` does not support a dtype, or `bucket_bytes` is empty or
  // automatic. Without gradients a step is a step report. `communicator` must outlive this.
  Reducer(Communicator& communicator, std::vector<GradientDescription> gradients,
          ReducerOptions options = {});
  // Waits for buckets in flight, within their time limits. If an exception unwinds the stack during
  // a step, calls abandon_step() instead.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  std::size_t gradient_count() const { return gradients_.size(); }
  // Valid until rebuild() or restore() returns true; then call it again.
  GradientStorage gradient(std::size_t index) const;
  std::span<std::byte> gradient_bytes(std::size_t index) const { return slots_[index].view.span(); }

  // Says that the gradient has its local value, which must not be touched until finalize() has
  // returned. Starts full buckets; does not wait for other ranks, unless start() of the hook does.
  // Lets communication advance, for a fraction of a millisecond at most, when a bucket becomes full
  // and, without a progress thread, at about every 32 KiB of gradients. Throws InvalidArgument if
  // the gradient is frozen. If it is marked twice in a step, finalize() throws.
  void mark_ready(std::size_t index);

  // Call between steps. A frozen gradient is not expected and keeps its value; its storage must not
  // be touched during a step. With `in_use`, the storage may be touched until finalize(), for which
  // its bucket waits. All ranks that have data must freeze the same gradients.
  void set_frozen(std::size_t index, bool frozen, bool in_use = false);
  bool is_frozen(std::size_t index) const { return slots_[index].frozen; }
  bool all_frozen() const { return frozen_count_ == gradients_.size(); }

  // Whether this gradient, or any gradient, has been marked since the last finalize().
  bool is_ready(std::size_t i) const { return slots_[i].ready.load(std::memory_order_acquire); }
  bool step_open() const { return ready_count_.load(std::memory_order_acquire) > 0; }

  // Call before finalize(), which then throws on all ranks: the gradient broke `static_graph`.
  void mark_changed(std::size_t index) { slots_[index].changed = true; }

  // Call between steps: the steps that follow belong to `epoch`. finalize() throws Mismatch on all
  // ranks unless they are in the same epoch and began it after the same step.
  void set_epoch(std::uint64_t epoch) { set_epoch(epoch, step_); }
  // The same, for an epoch that an earlier Reducer began after `steps_before` steps.
  void set_epoch(std::uint64_t epoch, std::uint64_t steps_before);
  std::uint64_t steps_before_epoch() const { return steps_before_epoch_; }

  // Ends the step: blocks until all buckets are reduced. A gradient that was not marked is unused
  // on this rank; its storage is this rank's contribution, so zero it unless it holds a value to be
  // added. A gradient that is unused on all ranks keeps its value.
  // Throws InvalidArgument on all ranks, with names and ranks, if a rank marked a gradient twice or
  // as changed, or if one is unused without `find_unused`; and Mismatch if ranks freeze
  // differently. These fail only the step: the next one may follow. Throws Mismatch if ranks end
  // different steps, or have different buckets.
  void finalize() { end_step(/*with_data=*/true); }
  // The same for a rank that has no data left while others have: it contributes zeros.
  void finalize_without_data();
  // Whether any rank computed the gradient in the last step that was finalized.
  bool was_used(std::size_t index) const {
    return report_.any_rank_says(index, reducer::StepReport::Use::used);
  }

  // Call before finalize(), which tells all ranks what any rank has requested. After a request for
  // other_gradients, finalize() does not check gradients (missing, repeated, ...): ranks first
  // compare their lists of gradients, and call judge_gradients() if these are equal.
  using Request = reducer::StepReport::Request;
  void request(Request what) { report_.request(what); }
  void withdraw(Request what) { report_.withdraw(what); }
  bool requested(Request what) const { return report_.requested(what); }
  // Throws what finalize() would have thrown about the gradients of its step, also on all ranks,
  // and fails only the step. Call it on all ranks or on none: it is collective if it throws.
  void judge_gradients() const;

  // For a rank that cannot finish the step: aborts the communicator, since others wait for the
  // rest, and tells them `reason`. Empty: only this rank knows the exception that ended the step.
  void abandon_step(const std::string& reason = {});
  // Aborts the communicator, because others may be waiting. All later calls throw `reason`.
  void give_up(const std::string& reason);

  // Forms buckets in the order in which rank 0's gradients became ready, and moves the values
  // there: after the first step, and again when that order has changed for good. Returns whether
  // storage has moved. If a rank lacks memory for old and new buckets together, all ranks keep the
  // old ones, and that rank logs it. Collective: call it on all ranks between finalize() and the
  // next mark_ready(). Sends nothing if no rebuild is due.
  bool rebuild();
  // Forms the buckets that another reducer of the same gradients had (`order`), and will rebuild in
  // the same steps as that one. Call between steps, on all ranks; sends nothing. Returns whether
  // storage has moved. Throws InvalidArgument if `order` is not an order of these gradients, and
  // what allocating buckets throws; then nothing has changed.
  bool restore(reducer::BucketOrder order);
  reducer::BucketOrder bucket_order() const;

  // `status`, the failure of an operation around the steps, with what it means for training.
  Status explained(const Status& status) const;

  std::uint64_t step_count() const { return step_; }  // Finalized steps.
  const reducer::BucketPlan& plan() const { return plan_; }
  const StepStatistics& last_step() const { return last_step_; }  // The last finalized one.

 private:
  struct Bucket {
    std::shared_ptr<Memory> memory;
    View view;
    std::vector<View> gradient_views;
    std::vector<std::uint8_t> silent, uncomputed;  // See FullBucket.
    std::atomic<std::size_t> pending = 0;          // Gradients that it waits for.
    Work work;
    TimePoint launch;  // In this step; TimePoint(): not launched.
    TimePoint end;
    bool left_out = false;             // In this step, unless its report says that a rank uses it.
    std::uint64_t idle_steps = 0;      // Steps since a rank last used it.
    std::uint64_t patience_steps = 2;  // Idle steps after which it is left out.
  };
  struct Slot {
    std::size_t bucket = 0;
    View view;
    std::atomic<bool> ready = false;
    std::atomic<bool> repeated = false;  // Marked again in this step.
    bool changed = false;
    bool frozen = false;
    // Other data lies in its storage: the bucket waits for finalize() even if this is frozen.
    bool in_use = false;
    bool is_awaited() const { return !frozen || in_use; }
    TimePoint ready_time;
    Memory kept;  // Copy of its value, if it is in kept_; reused by later steps.
  };
  reducer::BucketPlan plan_for(std::span<const std::size_t> order) const;
  std::vector<Bucket> allocate_buckets(const reducer::BucketPlan& plan) const;
  void use_buckets(reducer::BucketPlan plan, std::vector<Bucket> buckets);
  std::vector<Bucket> copy_buckets(const reducer::BucketPlan& plan) const;
  bool form_buckets_together(std::span<const std::size_t> order);
  FullBucket full(std::size_t bucket) const;
  void communicate(bool full, TimePoint begin);
  void launch_full_buckets();
  void launch(std::size_t index) STRETTO_REQUIRES(launch_mutex_);
  void keep_unused_values(std::size_t bucket) STRETTO_REQUIRES(launch_mutex_);
  void restore_unused_values();
  void end_finished_buckets() STRETTO_REQUIRES(launch_mutex_);
  void end_bucket(std::size_t index) STRETTO_REQUIRES(launch_mutex_);
  void end_step(bool with_data);
  void close_buckets(bool with_data);
  void write_report(bool with_data);
  const std::vector<std::size_t>& order_of_ranks();
  bool wants_rebuild();
  Status wait_for_buckets(Work report);
  bool is_used(const reducer::PlannedBucket& bucket) const;
  Status reduce_left_out();
  void choose_left_out();
  void judge_report();
  void record_step(TimePoint begin, TimePoint end);
  void reset_step();
  std::vector<std::string> names() const;
  static std::string first_line(const std::string& text);
  void fail(Status status);
  void tell_others(const Status& failure);
  void throw_if_failed() const;

  Communicator& communicator_;
  const std::vector<GradientDescription> gradients_;
  const ReducerOptions options_;
  const bool poll_on_ready_;
  const int exceptions_when_made_;  // std::uncaught_exceptions() then.

  reducer::BucketPlan plan_;
  std::uint64_t plan_hash_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;
  std::size_t frozen_count_ = 0;
  reducer::StepReport report_;
  std::uint64_t step_ = 0;
  std::uint64_t epoch_ = 0;
  std::uint64_t steps_before_epoch_ = 0;

  std::atomic<std::size_t> ready_count_ = 0;
  std::atomic<bool> in_flight_ = false;  // Whether a bucket of this step has been launched.
  std::atomic<TimePoint> last_look_ = TimePoint();  // mark_ready()'s last look at the clock.
  std::atomic<std::size_t> unseen_bytes_ = 0;       // Bytes of gradients since then.
  std::atomic<std::int64_t> inside_ticks_ = 0;      // Time of mark_ready() in communication.

  std::vector<std::size_t> ready_order_;     // Gradients that were not ready come last.
  std::vector<std::size_t> order_of_ranks_;  // Result of order_of_ranks().
  reducer::BucketOrder order_;               // All but its steps_before_next.
  std::uint64_t next_rebuild_step_ = 0;      // First step that may ask for a rebuild.
  bool rebuild_due_ = false;

  Mutex launch_mutex_;  // Also guards the works of buckets.
  std::size_t next_bucket_ STRETTO_GUARDED_BY(launch_mutex_) = 0;
  std::size_t finished_buckets_ STRETTO_GUARDED_BY(launch_mutex_) = 0;
  Status bucket_failure_ STRETTO_GUARDED_BY(launch_mutex_);      // The first in this step.
  bool closing_ STRETTO_GUARDED_BY(launch_mutex_) = false;       // Inside finalize(), of any kind.
  bool without_data_ STRETTO_GUARDED_BY(launch_mutex_) = false;  // Inside finalize_without_data().
  // Gradients that may be unused everywhere, whose values are kept while buckets are reduced.
  std::vector<std::size_t> kept_ STRETTO_GUARDED_BY(launch_mutex_);

  mutable Mutex failure_mutex_;
  Status failure_ STRETTO_GUARDED_BY(failure_mutex_);
  std::atomic<bool> failed_ = false;
  StepStatistics last_step_;
};

}  // namespace stretto
