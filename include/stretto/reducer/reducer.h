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
  // How many bytes close the first bucket of a dtype, the second, ..., and all that follow. A small
  // first one lets communication begin early.
  std::vector<std::size_t> bucket_bytes = {reducer::kFirstBucketBytes, reducer::kBucketBytes};
  // Count the limits from the bucket that is reduced last, see plan_for_ready_order().
  bool last_bucket_small = false;
  // Let rebuild() form new buckets in the order in which gradients really became ready.
  bool rebuild_buckets = true;
  // Let a rank end a step without all gradients; else that is an error on all ranks.
  bool find_unused = false;
  // Whether backward itself may wait for other ranks, in SyncBatchNorm or a hook of another model,
  // while passes of ranks may differ. Hooks that do not finish early then begin after backward;
  // otherwise one rank could wait in start() while another one waits elsewhere. Asked for each full
  // bucket, by any thread, since other models may come later. Null: no.
  std::function<bool()> pass_waits = {};
  // Where a mean is divided by the number of ranks.
  MeanDivision mean_division = MeanDivision::after_sum;
  // Tells this reducer from others on the communicator: equal on all ranks. So those that use two
  // in different orders find out, even if buckets have the same sizes.
  std::uint64_t number = 0;
  // Of an earlier Reducer, of other gradients, whose steps this one goes on counting.
  std::uint64_t steps = 0;
  // Reduces the buckets; default: one all_reduce each.
  std::shared_ptr<CommunicationHook> hook = std::make_shared<PlainReduction>();
  // Whose the hook is, see CommunicationHook::claim(). Default: this reducer's.
  std::shared_ptr<const void> hook_owner = nullptr;
  // Where they lie: not on the host only with a hook that can end in another, or knows the place.
  std::shared_ptr<BucketMemory> memory = std::make_shared<HostBuckets>();
  // Called for each bucket behind finish() of the hook, on the same thread: for what can be done
  // with gradients while backward goes on. What it throws aborts the communicator.
  std::function<void(const FullBucket&)> on_reduced = {};
  // Bounds each operation of a step. Default: the communicator's.
  std::optional<Duration> timeout = std::nullopt;
};

// Where a gradient lives: `view` lies in a bucket; `owner` keeps the bucket alive, for those who
// hold on to the view after a rebuild or after the reducer.
struct GradientStorage {
  View view;
  std::shared_ptr<const void> owner;
};

// Reduces gradients over all ranks while the backward pass that makes them is still running. It
// knows gradients as bytes, not as tensors of some framework.
//
// A gradient's storage is its place in a bucket (ReducerOptions::memory), where gradients of one
// dtype stand behind each other, on cache lines of their own, aligned for vector code. A step is:
// write each gradient, call mark_ready() for it, and when backward is over, finalize(); then the
// storage holds the reduced values. Buckets are reduced strictly in the plan's order, the same on
// all ranks, each as soon as it and those before it are full.
//
// At its end each step tells all ranks which gradients were computed where (StepReport). So one
// that only some ranks have is reduced where that is allowed, and else named on all ranks.
//
// A bucket that no rank has used for two steps, frozen or not, is left out of the next ones. If one
// then uses a gradient of it, it is reduced at the end of that step, after the report, and is left
// out later next time. Only where the hook finishes_early(); others may need to see all buckets.
// The first plan expects gradients in reverse order of the list, as backward passes make them.
//
// Threads: mark_ready() may be called from any thread, of different gradients at the same time; all
// else belongs to one thread, while no mark_ready() is running.
//
// Failures throw the exceptions of base/error.h. Unless a call says otherwise, all later calls
// repeat the first; storage then holds a mixture of local and reduced values.
class Reducer {
 public:
  // Allocates the buckets, zeroed, and attaches the hook; collective if that is. Throws
  // InvalidArgument if `op` does not support a dtype, or no limit is given. Without gradients a
  // step is a step report. `communicator` must outlive this.
  Reducer(Communicator& communicator, std::vector<GradientDescription> gradients,
          ReducerOptions options = {});
  // Waits for buckets in flight, within their deadlines; if an exception unwinds the stack, it
  // calls abandon_step() instead.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  std::size_t gradient_count() const { return gradients_.size(); }
  // Valid until rebuild() returns true; after that ask again.
  GradientStorage gradient(std::size_t index) const;
  std::span<std::byte> gradient_bytes(std::size_t index) const { return slots_[index].view.span(); }

  // Says that the gradient has its local value, not to be touched until finalize() has returned.
  // Begins the reduction of full buckets, and waits for nobody. Lets communication advance, for a
  // fraction of a millisecond at most: when it fills a bucket, and each time where there is no
  // progress thread. Throws InvalidArgument if frozen; finalize() does if it is ready already.
  void mark_ready(std::size_t index);

  // Between steps: a frozen gradient is not expected and keeps its value, not to be touched during
  // a step; where it is `in_use`, its bucket waits for finalize(), and it may be touched until
  // then. All ranks that have data must freeze alike.
  void set_frozen(std::size_t index, bool frozen, bool in_use = false);
  bool is_frozen(std::size_t index) const { return slots_[index].frozen; }
  bool all_frozen() const { return frozen_count_ == gradients_.size(); }

  // Since the last finalize(): was a gradient marked, or any?
  bool is_ready(std::size_t i) const { return slots_[i].ready.load(std::memory_order_acquire); }
  bool step_open() const { return ready_count_.load(std::memory_order_acquire) > 0; }

  // Before finalize(), which then throws on all ranks: the gradient has not come as was promised.
  void mark_changed(std::size_t index) { slots_[index].changed = true; }

  // Between steps: those that follow belong to `epoch`. finalize() throws Mismatch, on all ranks,
  // in a step that is not of the same epoch everywhere, begun after the same step.
  void set_epoch(std::uint64_t epoch) { set_epoch(epoch, step_); }
  // The same where an earlier Reducer has begun it, after so many steps.
  void set_epoch(std::uint64_t epoch, std::uint64_t steps_before);
  std::uint64_t steps_before_epoch() const { return steps_before_epoch_; }

  // Ends the step: blocks until all buckets are reduced. Gradients that have not been marked are
  // unused here: what their storage holds is this rank's contribution, so zero it, unless it still
  // holds a value to be added. One that is unused on all ranks keeps its value.
  // Throws InvalidArgument on all ranks, with names and ranks, if any gradient was marked twice or
  // as changed anywhere, or is unused without the option find_unused; likewise Mismatch if ranks
  // freeze differently. These fail only the step: the next one may follow. Throws Mismatch if ranks
  // end different steps, or with different buckets.
  void finalize() { end_step(/*with_data=*/true); }
  // The same of a rank that has no data left while others have: it contributes zeros.
  void finalize_without_data();
  // Whether any rank had the gradient in the last step that was finalized.
  bool was_used(std::size_t index) const {
    return report_.any_rank_says(index, reducer::StepReport::Use::used);
  }

  // Before finalize(), from which all ranks learn what any of them has requested. After
  // other_gradients, finalize() says nothing of those that some ranks lack: ranks compare what they
  // have, and call judge_gradients() if it is equal.
  using Request = reducer::StepReport::Request;
  void request(Request what) { report_.request(what); }
  void withdraw(Request what) { report_.withdraw(what); }
  bool requested(Request what) const { return report_.requested(what); }
  // Throws what finalize() would have thrown of the gradients of its step, likewise on all ranks,
  // and fails only the step. Collective where it throws; on all ranks or on none.
  void judge_gradients() const;

  // For who cannot go on making gradients: aborts the communicator, because others wait for the
  // rest of the step. `reason` is told to them; empty: an exception that only this rank has seen.
  void abandon_step(const std::string& reason = {});
  // Aborts the communicator, because others may be waiting. All later calls throw `reason`.
  void give_up(const std::string& reason);

  // Forms buckets in the order in which rank 0's gradients became ready and moves their values
  // there: after the first step, and again when that order has changed for good. Returns whether
  // storage has moved: not where a rank has too little memory for both, which it logs. Collective;
  // for all ranks at the same place, between finalize() and the next mark_ready(). Sends nothing
  // where nothing is to be changed.
  bool rebuild();
  // Forms the buckets of another reducer of the same gradients, between steps, on all ranks, and
  // new ones in the same steps as that. Returns whether storage has moved; sends nothing. Throws
  // InvalidArgument if `order` is none of these gradients, and what allocating buckets throws; then
  // nothing has changed.
  bool restore(reducer::BucketOrder order);
  reducer::BucketOrder bucket_order() const;

  // A failure of an operation around the steps, with what it means for training.
  Status explained(const Status& status) const;

  std::uint64_t step_count() const { return step_; }  // That have been finalized.
  const reducer::BucketPlan& plan() const { return plan_; }
  const StepStatistics& last_step() const { return last_step_; }  // That was finalized.

 private:
  struct Bucket {
    std::shared_ptr<Memory> memory;
    View view;
    std::vector<View> gradient_views;
    std::vector<std::uint8_t> silent, uncomputed;  // See FullBucket.
    std::atomic<std::size_t> pending = 0;          // Gradients that it waits for.
    Work work;
    TimePoint launch;  // In this step; TimePoint(): not yet.
    TimePoint end;
    bool left_out = false;             // In this step, unless its report says that a rank uses it.
    std::uint64_t idle_steps = 0;      // Since a rank has used it.
    std::uint64_t patience_steps = 2;  // So many of them, and it is left out.
  };
  struct Slot {
    std::size_t bucket = 0;
    View view;
    std::atomic<bool> ready = false;
    std::atomic<bool> repeated = false;  // Marked again in this step.
    bool changed = false;
    bool frozen = false;
    // Something else lies in its place: a frozen one then waits for finalize(), too.
    bool in_use = false;
    bool is_awaited() const { return !frozen || in_use; }
    TimePoint ready_time;
    Memory kept;  // What it held, if it is one of kept_; stays for other steps.
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
  const int exceptions_when_made_;  // That unwound the stack then.

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
  std::atomic<TimePoint> last_look_ = TimePoint();  // At the clock, by mark_ready().
  std::atomic<std::size_t> unseen_bytes_ = 0;       // Of gradients since then.
  std::atomic<std::int64_t> inside_ticks_ = 0;      // What mark_ready() spent on communication.

  std::vector<std::size_t> ready_order_;     // Those that were not ready come last.
  std::vector<std::size_t> order_of_ranks_;  // What order_of_ranks() returns.
  reducer::BucketOrder order_;               // But for steps_before_next:
  std::uint64_t next_rebuild_step_ = 0;      // Not before.
  bool rebuild_due_ = false;

  Mutex launch_mutex_;  // Guards the works of buckets, too.
  std::size_t next_bucket_ STRETTO_GUARDED_BY(launch_mutex_) = 0;
  std::size_t finished_buckets_ STRETTO_GUARDED_BY(launch_mutex_) = 0;
  Status bucket_failure_ STRETTO_GUARDED_BY(launch_mutex_);      // Of this step, the first.
  bool closing_ STRETTO_GUARDED_BY(launch_mutex_) = false;       // Has finalize(), of any kind.
  bool without_data_ STRETTO_GUARDED_BY(launch_mutex_) = false;  // Has finalize_without_data().
  // Gradients that may be unused everywhere, whose values are kept while buckets are reduced.
  std::vector<std::size_t> kept_ STRETTO_GUARDED_BY(launch_mutex_);

  mutable Mutex failure_mutex_;
  Status failure_ STRETTO_GUARDED_BY(failure_mutex_);
  std::atomic<bool> failed_ = false;
  StepStatistics last_step_;
};

}  // namespace stretto
