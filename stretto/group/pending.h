// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "stretto/execution/execution.h"
#include "stretto/group/engine.h"
#include "stretto/group/packing.h"

namespace stretto::group {

// When others are to be asked what keeps them, so that their answers are here by the deadline.
TimePoint time_to_ask(const Deadline& deadline);

// An operation between its submission and its end: what Work holds. Belongs to a group until it
// ends; Works may outlive the group.
class PendingOperation : public Operation {
 public:
  PendingOperation(std::shared_ptr<Engine> engine, std::uint64_t group)
      : engine_(std::move(engine)), group_(group) {}

  bool poll() override;
  Status wait(Deadline deadline) override;
  Status wait_on_device() override;
  void then(Continuation continuation) override;
  void abandon() override;
  // Messages are not numbered like collectives.
  OperationInfo info() const override {
    const bool numbered = operation_.collective != Collective::point_to_point;
    return {operation_.collective, numbered ? sequence_ : 0, done() ? duration_ : Duration()};
  }

  // Before anybody else holds it.
  void begin(const OperationDescriptor& operation, std::uint32_t sequence, Deadline deadline);
  void finish(Status status) STRETTO_REQUIRES(engine_held);
  const OperationDescriptor& operation() const { return operation_; }
  std::uint32_t sequence() const { return sequence_; }
  Deadline deadline() const { return deadline_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Valid once done.
  const Status& status() const { return status_; }
  // For operations that others keep waiting; `now` never goes back. Whether those others are to be
  // asked now where they are, each time once: when the operation has been running for `ask_after`
  // (zero: never), and before a warning or the deadline.
  bool asks_at(TimePoint now, Duration ask_after) STRETTO_REQUIRES(engine_held);
  // It has been running since `now`, unless that has been said before; the program's user is to be
  // warned `warn_after` later (zero: never).
  void runs_since(TimePoint now, Duration warn_after) STRETTO_REQUIRES(engine_held);
  // Whether that is so; then again when it has been running twice as long, and so on.
  bool warns_at(TimePoint now) STRETTO_REQUIRES(engine_held);
  TimePoint running_since() const { return running_since_; }

 private:
  std::shared_ptr<Engine> engine_;
  std::uint64_t group_;
  OperationDescriptor operation_;
  std::uint32_t sequence_ = 0;
  Deadline deadline_;
  TimePoint running_since_;
  TimePoint asked_at_;
  TimePoint warn_at_;
  std::vector<Continuation> continuations_;
  Status status_;  // Written before done_, read after it, as is the next.
  Duration duration_{};
  std::atomic<bool> done_{false};
};

// A collective in a group's queue.
class PendingCollective : public PendingOperation {
 public:
  using PendingOperation::PendingOperation;
  execution::Call call;
  std::optional<Packing> packing;
};

// A send or a receive.
class PendingMessage : public PendingOperation {
 public:
  using PendingOperation::PendingOperation;
  std::optional<Rank> source() const override { return sends ? std::nullopt : peer; }

  transport::Request request;
  bool sends = false;
  int tag = 0;
  std::optional<Rank> peer;  // In the group. Nothing: any, and not known yet.
  bool posted = false;       // Whether the transport has been asked.
};

// Of objects that are used again, one that nobody else holds any more; null: there is none.
template <class T>
std::shared_ptr<T> find_idle(const std::vector<std::shared_ptr<T>>& pool) {
  for (const auto& object : pool) {
    if (object.use_count() != 1) continue;
    // Acquire, for the count has been read relaxed: pairs with the release by which the last one,
    // who may have read the result a moment ago, has let go of it.
    std::atomic_thread_fence(std::memory_order_acquire);
    return object;
  }
  return nullptr;
}

}  // namespace stretto::group
