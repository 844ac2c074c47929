// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/dtype.h"
#include "stretto/base/half.h"
#include "stretto/base/mutex.h"
#include "stretto/base/reduce_op.h"
#include "stretto/base/view.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/bucket_memory.h"

namespace stretto {

struct CompressionStatistics;  // compression_statistics.h

// One gradient that the reducer keeps equal on all ranks. The list must be the same on every rank.
struct GradientDescription {
  std::string name;  // For error messages, and as the key of what a hook keeps from step to step.
  DType dtype = DType::f32;
  std::size_t count = 0;  // Elements.
  std::size_t rows = 0;   // If it is a matrix: its rows, which divide `count`. 0: unknown.
  bool delayed = false;   // Reduced after those that are not, so that none waits for it.
  int device = 0;         // Device on which it is made. A bucket holds gradients of one device.
  std::size_t first = 0;  // If it is a part of a longer gradient: its first element there.
};

// A bucket of gradients that are all ready, as it is handed to a CommunicationHook.
struct FullBucket {
  std::size_t index = 0;     // In the order of reduction, which is the same on all ranks.
  std::size_t of_count = 1;  // Buckets of the step.
  std::uint64_t step = 0;    // Another one in each step, also if some buckets are left out.
  // The whole bucket: the gradients, each on cache lines of its own, and the gaps between them.
  View view;
  std::span<const std::size_t> gradients;  // Their indices in the Reducer's list.
  std::span<const View> gradient_views;    // Parts of `view`, in the same order.
  // In the same order, 1 where this rank contributes nothing in this step: the gradient is frozen,
  // or was not computed and holds zeros. If that is so on all ranks, the result is discarded, so a
  // hook keeps what it has yet to send of the gradient for later. Empty: no gradient is silent.
  std::span<const std::uint8_t> silent = {};
  ReduceOp op = ReduceOp::mean;  // What the step is to compute.
  std::optional<Duration> timeout = std::nullopt;
  BucketMemory* memory = &host_buckets();  // Where the bucket lies.
  // In the same order, 1 where this rank has not computed the gradient. It holds zeros, or an
  // earlier value, which is this rank's contribution if another rank has computed the gradient. If
  // no rank has, CommunicationHook::forget() is called at the end of the step. Empty: none.
  std::span<const std::uint8_t> uncomputed = {};

  bool is_last() const { return index + 1 == of_count; }
  bool is_silent(std::size_t i) const { return !silent.empty() && silent[i] != 0; }
  bool is_uncomputed(std::size_t i) const { return !uncomputed.empty() && uncomputed[i] != 0; }
};

// How buckets are reduced: the interface for compression, and for anything else but one all_reduce
// of the gradients as they are. All ranks use the same kind of hook. Each Reducer has a hook object
// of its own, which another Reducer may use after it is destroyed. A hook keeps its state by
// gradient (`FullBucket::gradients`), since a rebuild moves gradients between buckets.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  // Makes `owner` the owner of this hook, and of inner(), as long as `owner` lives. A Reducer calls
  // it before attach(). `timeout` bounds each operation of attach(). Throws InvalidArgument if
  // another owner lives, unless the hook is_shareable(). Any thread.
  void claim(const std::shared_ptr<const void>& owner, std::optional<Duration> timeout);

  // The hook and its settings: "f16, then plain". Must be equal on all ranks.
  virtual std::string name() const = 0;

  // Called by the constructor of each Reducer that uses the hook, with all its gradients, before
  // the first start(); again by the next Reducer, whose gradients may be others. May communicate
  // and block, since all ranks build their reducers. The constructor throws what this throws.
  virtual void attach(Communicator& communicator, std::span<const GradientDescription> gradients) {
    if (inner() != nullptr) inner()->attach(communicator, gradients);
  }

  // Starts the reduction of a full bucket, in place. It should not wait for other ranks, since
  // backward goes on only when it returns. When the work has ended and finish() has run,
  // `bucket.view` must hold the same bits on all ranks: `bucket.op` of the ranks' values, or an
  // approximation. Called in the order of buckets, one at a time, on the thread that made the last
  // gradient ready. An exception ends training on all ranks, because the ranks that do not throw
  // wait for the bucket.
  virtual Work start(Communicator& communicator, const FullBucket& bucket) = 0;

  // Called when the work of start() has ended without failure; one bucket at a time, in the order
  // of buckets. Must not communicate: other ranks may be in another bucket. An exception fails the
  // step and ends training on all ranks, except for InvalidArgument: that is for what all ranks
  // refuse alike, and no other rank is told of it. Runs on the thread that ends the step; if
  // finishes_early(), also on a thread that makes a gradient ready and sees that the work has
  // ended.
  virtual void finish(const FullBucket& bucket) { (void)bucket; }
  // Called at the end of a step in which no rank has computed these gradients, which were all
  // `uncomputed`: the hook restores what it remembered of them before the step. Runs on the thread
  // that ends the step, after finish() of all buckets. Must not communicate. An exception ends
  // training on all ranks.
  virtual void forget(std::span<const std::size_t> gradients) {
    if (inner() != nullptr) inner()->forget(gradients);
  }
  // Whether a bucket is complete when the work of start() has ended. Then finish() may run before
  // later buckets start, and buckets that no rank uses may be left out, or start after the others.
  virtual bool finishes_early() const { return inner() != nullptr && inner()->finishes_early(); }

  // The hook to which this one hands buckets, or null; it lives as long as this one. The default
  // attach(), forget(), finishes_early(), last_compression(), save() and load() call those of
  // inner().
  virtual CommunicationHook* inner() const { return nullptr; }
  // What the last step cost, if the hook compresses gradients; null if it never does.
  virtual const CompressionStatistics* last_compression() const {
    return inner() == nullptr ? nullptr : inner()->last_compression();
  }
  // Whether this hook remembers nothing. If so, several Reducers may use one object at a time.
  virtual bool is_shareable() const { return false; }

  // Returns a hook that does what this one does, with `last` in place of the PlainReduction that
  // this one hands its buckets to in the end. Returns null if there is no such PlainReduction, or
  // if this hook is of a derived class, which may do more. If the result is not null, this hook
  // reads and writes buckets only by operations of the communicator and by FullBucket::memory, so
  // buckets may lie in memory that the host does not reach.
  virtual std::shared_ptr<CommunicationHook> ending_in(
      const std::shared_ptr<CommunicationHook>& last) const {
    return (void)last, nullptr;
  }

  // State that is needed to continue training bit for bit; empty if there is none.
  virtual std::vector<std::byte> save() const {
    return inner() == nullptr ? std::vector<std::byte>() : inner()->save();
  }
  // Throws InvalidArgument if `state` was not returned by save() of the same hook.
  virtual void load(std::span<const std::byte> state);

 protected:
  // Time limit of each operation of attach(). Default: the communicator's.
  const std::optional<Duration>& timeout() const { return timeout_; }

 private:
  Mutex owner_mutex_;
  std::weak_ptr<const void> owner_ STRETTO_GUARDED_BY(owner_mutex_);
  std::optional<Duration> timeout_;  // Set by the owner.
};

// One all_reduce of the bucket as it is: the default.
class PlainReduction : public CommunicationHook {
 public:
  std::string name() const override { return "plain"; }
  Work start(Communicator& communicator, const FullBucket& bucket) override;
  bool finishes_early() const override { return true; }
  // A derived class may do more.
  std::shared_ptr<CommunicationHook> ending_in(
      const std::shared_ptr<CommunicationHook>& last) const override {
    return is_shareable() ? last : nullptr;
  }
  bool is_shareable() const override { return typeid(*this) == typeid(PlainReduction); }
};

// Sends gradients of f32 as f16 (Number = Half) or bf16 (BFloat16), by another hook or a plain
// reduction. Values of ranks are added in f32, and the sum is rounded once. A rank sends half as
// many bytes; sums of several ranks of a host travel as f32, so less is saved between hosts. Values
// above 65504 become infinite in f16, so that a loss scaler notices; f16() of codec.h instead clips
// at that or a lower limit, and keeps the rest. Gradients of other dtypes pass unchanged.
template <class Number>
class HalvedReduction : public CommunicationHook {
 public:
  explicit HalvedReduction(
      std::shared_ptr<CommunicationHook> inner = std::make_shared<PlainReduction>())
      : inner_(std::move(inner)) {}
  std::string name() const override;
  void attach(Communicator& communicator, std::span<const GradientDescription> gradients) override {
    buckets_.clear();  // They may lie in memory of another communicator.
    inner_->attach(communicator, gradients);
  }
  Work start(Communicator& communicator, const FullBucket& bucket) override;
  void finish(const FullBucket& bucket) override;
  CommunicationHook* inner() const override { return inner_.get(); }
  // A derived class may do more.
  std::shared_ptr<CommunicationHook> ending_in(
      const std::shared_ptr<CommunicationHook>& last) const override {
    if (typeid(*this) != typeid(HalvedReduction)) return nullptr;
    auto inner = inner_->ending_in(last);
    return inner == nullptr ? nullptr : std::make_shared<HalvedReduction>(std::move(inner));
  }

 private:
  struct Halved {
    Memory numbers;
    View view;
    std::vector<View> gradient_views;
  };
  FullBucket halved(const FullBucket& bucket) const;

  std::shared_ptr<CommunicationHook> inner_;
  std::vector<Halved> buckets_;  // By index.
};

using F16Reduction = HalvedReduction<Half>;
using Bf16Reduction = HalvedReduction<BFloat16>;

}  // namespace stretto
