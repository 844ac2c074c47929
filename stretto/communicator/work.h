// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "stretto/base/clock.h"
#include "stretto/base/id.h"
#include "stretto/base/status.h"

namespace stretto {

// Told how an operation has ended.
using Continuation = std::function<void(const Status&)>;

namespace communicator {
// What a Work refers to: implemented by each kind of communicator.
class Operation {
 public:
  virtual ~Operation() = default;
  // Whether the operation has ended, well or badly. Does not block; makes progress if it can.
  virtual bool poll() = 0;
  // Blocks until the operation has ended or `deadline` has passed; the latter is a timeout, after
  // which the operation goes on (its own deadline still holds).
  virtual Status wait(Deadline deadline) = 0;
  // See Work::then().
  virtual void then(Continuation continuation) = 0;
  // Of a receive that has ended well: whose message it was.
  virtual std::optional<Rank> source() const { return std::nullopt; }
};
}  // namespace communicator

// An operation in flight. The buffers given to the operation belong to it until it is done: they
// must stay alive, must not be written, and an output must not be read.
//
// Move-only. One thread at a time may use a Work; different Works of one communicator may be waited
// for on different threads. Destroying a Work that is not done waits for it, within the operation's
// deadline; an error found then is kept by the communicator, which repeats it on the next call.
class [[nodiscard]] Work {
 public:
  Work() = default;  // Done, successful.
  explicit Work(std::shared_ptr<communicator::Operation> operation)
      : operation_(std::move(operation)) {}
  explicit Work(Status failure) : result_(std::move(failure)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work() {
    // The communicator keeps the failure; there is nobody here to tell.
    if (operation_ != nullptr) (void)wait_status();
  }

  // Whether the operation has ended, well or badly. Does not block.
  bool done();
  // Blocks until the operation has ended. Throws what made it fail: PeerLost, Timeout, Mismatch,
  // ... Afterwards, called again, says the same.
  void wait() {
    if (operation_ != nullptr || !result_.ok()) wait_status().or_throw();
  }
  // The same, as a value.
  Status wait_status();
  // Gives up waiting after `timeout` and throws Timeout; the operation goes on.
  void wait_for(Duration timeout);
  // How the operation has ended, without blocking; nothing while it has not.
  std::optional<Status> status();
  // Of a receive that has ended well: the rank whose message it was.
  std::optional<Rank> source() const { return source_; }

  // Calls `continuation` once when the operation has ended, however it ended: at once on this
  // thread if it has ended already, else on a thread that makes progress: one that waits for, polls
  // or destroys a Work of the job, or stretto's own. No lock is held; it may submit operations, but
  // should not wait, because that thread has others to serve. It must not throw. May be called
  // several times, before wait().
  void then(Continuation continuation);

 private:
  void finish(Status status);

  std::shared_ptr<communicator::Operation> operation_;  // Null once done.
  Status result_;
  std::optional<Rank> source_;
};

}  // namespace stretto
