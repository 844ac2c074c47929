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
  std::string name;  // For error messages, and for what a hook keeps of it from step to step.
  DType dtype = DType::f32;
  std::size_t count = 0;  // Elements.
  std::size_t rows = 0;   // Of the matrix that it is, where that is known: they divide `count`.
  bool delayed = false;   // Reduced after those that are not: it holds up no other by being late.
  int device = 0;         // On which the gradient is made: others share no bucket with it.
  std::size_t first = 0;  // Where it is a part of a longer one: its first element there.
};

// A bucket of gradients that are all ready, as it is handed to a CommunicationHook.
struct FullBucket {
  std::size_t index = 0;     // In the order of reduction, which is the same on all ranks.
  std::size_t of_count = 1;  // Buckets of the step.
  std::uint64_t step = 0;    // Another one in each step, of whose buckets some may be left out.
  // All of it: the gradients, each on a cache line of its own, and the gaps between them.
  View view;
  std::span<const std::size_t> gradients;  // As the Reducer numbers them.
  std::span<const View> gradient_views;    // Parts of `view`, in the same order.
  // In the same order, 1 where this rank has nothing to say in this step: a gradient that is
  // frozen, or that it has not computed and holds zeros. Perhaps all ranks have not, and what is
  // reduced of it is forgotten; so what a hook has yet to send of it waits. Empty: none is.
  std::span<const std::uint8_t> silent = {};
  ReduceOp op = ReduceOp::mean;  // What the step is to compute.
  std::optional<Duration> timeout = std::nullopt;
  BucketMemory* memory = &host_buckets();  // Where it lies.
  // In the same order, 1 where this rank has not computed the gradient. It holds zeros, or a value
  // of before, which counts as this rank's if others have computed it; if no rank has, the end of
  // the step tells so by CommunicationHook::forget(). Empty: none.
  std::span<const std::uint8_t> uncomputed = {};

  bool is_last() const { return index + 1 == of_count; }
  bool is_silent(std::size_t i) const { return !silent.empty() && silent[i] != 0; }
  bool is_uncomputed(std::size_t i) const { return !uncomputed.empty() && uncomputed[i] != 0; }
};

// How buckets are reduced: the seat for compression, and for everything else that is not one
// all_reduce of the gradients as they are. All ranks use the same kind, and each Reducer has an
// object of its own, which another one may use when that is gone. It keeps what it has to remember
// by gradient (`FullBucket::gradients`), since gradients move between buckets when these are
// rebuilt.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  // Makes `owner` the one whose gradients are reduced, as long as it lives; also of inner(). A
  // Reducer calls it before attach(). `timeout` is that of each operation of attach(). Throws
  // InvalidArgument if another owner lives, unless the hook is_shareable(). Any thread.
  void claim(const std::shared_ptr<const void>& owner, std::optional<Duration> timeout);

  // What it does, with its settings: "f16, then plain". Must be equal on all ranks.
  virtual std::string name() const = 0;

  // Called when a Reducer that uses it is built, with all its gradients: before the first start(),
  // and again by the next Reducer, if gradients have changed. May communicate and block, since all
  // ranks build their reducers. What it throws, the constructor throws.
  virtual void attach(Communicator& communicator, std::span<const GradientDescription> gradients) {
    if (inner() != nullptr) inner()->attach(communicator, gradients);
  }

  // Starts the reduction of a full bucket, in place. Backward goes on when it returns, so it should
  // not wait for other ranks.
  // When the work has ended and finish() has run, `bucket.view` must hold the same bits on all
  // ranks: `bucket.op` of what they had, or what stands for it. Called in the order of buckets, one
  // at a time, on whichever thread made the last gradient ready. What it throws to a Reducer ends
  // training on all ranks: those that do not throw wait for the bucket.
  virtual Work start(Communicator& communicator, const FullBucket& bucket) = 0;

  // Ends what start() began, once its work has ended well; one bucket at a time, in the order of
  // buckets. Must not communicate: other ranks may be in another bucket. What it throws fails the
  // step. It runs on the thread that ends the step, or where finishes_early() on a thread that
  // makes a gradient ready, as soon as that sees that the work has ended.
  virtual void finish(const FullBucket& bucket) { (void)bucket; }
  // At the end of a step in which no rank has computed these gradients, all of which were
  // `uncomputed`: what the hook remembers of them is to be as it was before the step. On the thread
  // that ends the step, behind finish() of all buckets. Must not communicate. What it throws ends
  // training on all ranks.
  virtual void forget(std::span<const std::size_t> gradients) {
    if (inner() != nullptr) inner()->forget(gradients);
  }
  // Whether a bucket waits for nothing but the work of start(): then finish() may run before later
  // ones start, and those that no rank uses may be left out, or started behind the others.
  virtual bool finishes_early() const { return inner() != nullptr && inner()->finishes_early(); }

  // The hook that this one hands buckets to, if there is one; lives as long as this. What this one
  // does not override of attach(), forget(), finishes_early(), last_compression(), save() and
  // load() is as it is there.
  virtual CommunicationHook* inner() const { return nullptr; }
  // What the last step has cost a hook that compresses gradients; null if it never does.
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

  // What has to be kept to go on training bit by bit where it was saved; empty: nothing.
  virtual std::vector<std::byte> save() const {
    return inner() == nullptr ? std::vector<std::byte>() : inner()->save();
  }
  // Throws InvalidArgument if `state` is not what save() of the same hook has returned.
  virtual void load(std::span<const std::byte> state);

 protected:
  // Bounds each operation of attach(). Default: the communicator's.
  const std::optional<Duration>& timeout() const { return timeout_; }

 private:
  Mutex owner_mutex_;
  std::weak_ptr<const void> owner_ STRETTO_GUARDED_BY(owner_mutex_);
  std::optional<Duration> timeout_;  // Of the owner.
};

// One all_reduce of the bucket as it is: what is done without a hook.
class PlainReduction : public CommunicationHook {
 public:
  std::string name() const override { return "plain"; }
  Work start(Communicator& communicator, const FullBucket& bucket) override;
  bool finishes_early() const override { return true; }
  // Nobody knows what a derived class does.
  std::shared_ptr<CommunicationHook> ending_in(
      const std::shared_ptr<CommunicationHook>& last) const override {
    return is_shareable() ? last : nullptr;
  }
  bool is_shareable() const override { return typeid(*this) == typeid(PlainReduction); }
};

// Gradients of f32 travel as f16 (Number = Half) or bf16 (BFloat16), by another hook or a plain
// reduction. Ranks' values are added in f32 and rounded once. That halves the bytes of a rank; sums
// of several ranks of a host travel as f32, so that between hosts it saves less. What exceeds
// 65504 is infinite in f16, so that a loss scaler notices; f16() of codec.h cuts it off, or at
// another limit, and keeps the rest. Other dtypes pass unchanged.
template <class Number>
class HalvedReduction : public CommunicationHook {
 public:
  explicit HalvedReduction(
      std::shared_ptr<CommunicationHook> inner = std::make_shared<PlainReduction>())
      : inner_(std::move(inner)) {}
  std::string name() const override;
  void attach(Communicator& communicator, std::span<const GradientDescription> gradients) override {
    buckets_.clear();  // Memory of another communicator, perhaps.
    inner_->attach(communicator, gradients);
  }
  Work start(Communicator& communicator, const FullBucket& bucket) override;
  void finish(const FullBucket& bucket) override;
  CommunicationHook* inner() const override { return inner_.get(); }
  // Nobody knows what a derived class does.
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
