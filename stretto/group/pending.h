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

// When to ask other ranks what keeps them, so that their answers arrive before the deadline.
TimePoint time_to_ask(const Deadline& deadline);

// An operation from its submission to its end. A Work refers to it and may outlive the group.
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

  // To be called before anything else refers to the object.
  void begin(const OperationDescriptor& operation, std::uint32_t sequence, Deadline deadline);
  void finish(Status status) STRETTO_REQUIRES(engine_held);
  const OperationDescriptor& operation() const { return operation_; }
  std::uint32_t sequence() const { return sequence_; }
  Deadline deadline() const { return deadline_; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Valid once done.
  const Status& status() const { return status_; }
  // Whether to ask the ranks that this operation waits for now: once when it has been running for
  // `ask_after` (zero: never), once before each warning and once before the deadline. `now` never
  // goes back.
  bool asks_at(TimePoint now, Duration ask_after) STRETTO_REQUIRES(engine_held);
  // Notes that it has been running since `now`, and that the first warning is due `warn_after`
  // later (zero: never). Later calls do nothing.
  void runs_since(TimePoint now, Duration warn_after) STRETTO_REQUIRES(engine_held);
  // Whether a warning is due. The next one is due when it has been running twice as long, and so
  // on.
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
  Status status_;  // Written before done_ and read after it, like duration_.
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
  std::optional<Rank> peer;  // In the group. Nothing: any rank, not known yet.
  bool posted = false;       // Whether the transport has been asked.
};

// An object of `pool` that nothing else refers to; null: there is none.
template <class T>
std::shared_ptr<T> find_idle(const std::vector<std::shared_ptr<T>>& pool) {
  for (const auto& object : pool) {
    if (object.use_count() != 1) continue;
    // use_count() reads relaxed. This acquire pairs with the release by which the last other owner,
    // which may have read the result a moment ago, dropped its reference.
    std::atomic_thread_fence(std::memory_order_acquire);
    return object;
  }
  return nullptr;
}

}  // namespace stretto::group
