// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/dtype.h"
#include "stretto/base/reduce_op.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/bucket_plan.h"

namespace stretto {

// One gradient that the reducer keeps equal on all ranks. The list must be the same on every rank.
struct GradientDescription {
  std::string name;  // For error messages.
  DType dtype = DType::f32;
  std::size_t count = 0;  // Elements.
};

struct ReducerOptions {
  ReduceOp op = ReduceOp::mean;
  // How many bytes close the first bucket of a dtype, the second, ...; the last limit holds for all
  // that follow. A small first bucket lets communication begin early.
  std::vector<std::size_t> bucket_bytes = {reducer::kFirstBucketBytes, reducer::kBucketBytes};
  // Count the limits from the bucket that is reduced last, see plan_for_ready_order().
  bool last_bucket_small = false;
  // Let rebuild() form new buckets in the order in which gradients really became ready.
  bool rebuild_buckets = true;
  // For each operation of a step; default: the communicator's.
  std::optional<Duration> timeout = std::nullopt;
};

// Where a gradient lives: `view` lies in a bucket; `owner` keeps the bucket alive, for those who
// hold on to the view after a rebuild or after the reducer.
struct GradientStorage {
  View view;
  std::shared_ptr<const void> owner;
};

// What one step cost. Times are seconds.
struct StepStatistics {
  // From the first gradient that was ready to the call of finalize().
  double backward_seconds = 0;
  // From the launch of the first bucket to the end of the last one, as seen by this rank.
  double communication_seconds = 0;
  // What finalize() waited: the part of the communication that was not hidden behind backward.
  double exposed_seconds = 0;
  // For each gradient, when it became ready, counted from the first one.
  std::vector<double> ready_seconds;
};

// Reduces gradients over all ranks while the backward pass that makes them is still running. It
// knows gradients as bytes, not as tensors of some framework.
//
// A gradient's storage is its place in a bucket: memory from Communicator::allocate_bytes(), where
// gradients of one dtype stand behind each other, each on a cache line of its own (so that the
// framework's vector code finds them aligned, for at most 63 bytes each). A step is: write each
// gradient, call mark_ready() for it, and when all are ready, finalize(); then the storage holds
// the reduced values. Buckets are reduced strictly in the plan's order, the same on all ranks, each
// as soon as it and those before it are full.
//
// The first plan expects gradients in reverse order of the list, as backward passes make them.
//
// Threads: mark_ready() may be called from any thread, for different gradients at the same time.
// All other calls belong to one thread, while no mark_ready() is running.
//
// Failures throw the exceptions of base/error.h. After a failure every call repeats the first one;
// the storage then holds a mixture of local and reduced values.
class Reducer {
 public:
  // Allocates the buckets, zeroed. Not collective. Throws InvalidArgument if there is nothing to
  // reduce, `op` does not support a dtype, or no limit is given. `communicator` must outlive this.
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

  // Says that the gradient has its local value, which must not be touched until finalize() has
  // returned. Begins the reduction of buckets that are full now, and waits for nobody: the bytes
  // are worked on later (see Communicator). Also lets communication advance, for a fraction of a
  // millisecond at most: when it fills a bucket, and each time where there is no progress thread.
  // Throws InvalidArgument if the gradient is ready already.
  void mark_ready(std::size_t index);

  // Whether a gradient was marked since the last finalize().
  bool step_open() const { return ready_count_.load(std::memory_order_acquire) > 0; }
  bool all_ready() const {
    return ready_count_.load(std::memory_order_acquire) == gradients_.size();
  }

  // Ends the step: blocks until all buckets are reduced. If gradients are missing it throws
  // InvalidArgument with their names, and aborts the communicator with the same sentence, because
  // the other ranks wait for buckets that this rank will never send.
  void finalize();

  // For who makes gradients and cannot go on: if a gradient has been marked since the last
  // finalize(), aborts the communicator, because the other ranks wait for the rest of the step.
  void abandon_step();

  // After the first step: forms buckets in the order in which rank 0's gradients became ready and
  // moves their values there. Returns whether storage has moved. Collective; must be called by all
  // ranks at the same place, between finalize() and the next mark_ready(). Does nothing (and sends
  // nothing) before the first step, after the first rebuild, or if the options say so.
  bool rebuild();

  const reducer::BucketPlan& plan() const { return plan_; }
  // Of the last step that was finalized.
  const StepStatistics& last_step() const { return last_step_; }

 private:
  struct Bucket {
    std::shared_ptr<Memory> memory;
    View view;
    std::size_t gradient_count = 0;
    std::atomic<std::size_t> pending = 0;  // Gradients that are not ready.
    Work work;
  };
  struct Slot {
    std::size_t bucket = 0;
    View view;
    std::atomic<bool> ready = false;
    TimePoint ready_time;
  };

  std::vector<reducer::GradientSize> gradient_sizes() const;
  void lay_out(reducer::BucketPlan plan);
  void launch_full_buckets();
  void note_finished_buckets();
  std::vector<std::string> missing_names() const;
  void fail_unfinished_step();
  void fail_on_all_ranks(Status status);
  void record_step(TimePoint finalize_time, TimePoint end);
  void reset_step();
  void fail(Status status);
  void throw_if_failed() const;

  Communicator& communicator_;
  const std::vector<GradientDescription> gradients_;
  const ReducerOptions options_;
  const bool poll_on_ready_;
  const int exceptions_when_made_;  // That unwound the stack then.

  reducer::BucketPlan plan_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;

  std::atomic<std::size_t> ready_count_ = 0;
  std::atomic<bool> in_flight_ = false;   // Whether a bucket of this step has been launched.
  std::vector<std::size_t> ready_order_;  // Kept after the step, for rebuild().
  bool rebuild_due_ = false;
  bool rebuild_done_ = false;

  std::mutex launch_mutex_;  // Guards the fields below and the works of buckets.
  std::size_t next_bucket_ = 0;
  std::size_t finished_buckets_ = 0;
  TimePoint first_launch_;
  TimePoint last_end_;

  mutable std::mutex failure_mutex_;
  Status failure_;
  std::atomic<bool> failed_ = false;
  StepStatistics last_step_;
};

}  // namespace stretto
