// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/id.h"
#include "stretto/base/status.h"
#include "stretto/group/operation.h"

namespace stretto {

namespace communicator {
class ObservedBackend;
}

// An operation in flight. The buffers given to the operation belong to it until it is done: they
// must stay alive, must not be written, and an output must not be read.
//
// Move-only. One thread at a time may use a Work; different Works of one communicator may be waited
// for on different threads. Destroying a Work that is not done waits for it, within the operation's
// deadline; an error found then is kept by the communicator, which repeats it on the next call.
//
// While an exception unwinds the stack, a Work that was made before it was thrown does not wait
// when it is destroyed: nobody knows whether this rank will still do what the others need of it.
// Unless the operation has ended, its communicator is aborted on all ranks, which are told which
// operation of which rank was abandoned. What was thrown cannot be told: the language does not say
// before it is caught. To throw and keep the communicator, wait first.
class [[nodiscard]] Work {
 public:
  Work() = default;  // Done, successful.
  explicit Work(std::shared_ptr<group::Operation> operation)
      : operation_(std::move(operation)), exceptions_when_made_(std::uncaught_exceptions()) {}
  explicit Work(Status failure) : result_(std::move(failure)) {}
  // Done, successful: an operation that ended while it was being submitted.
  Work(Collective collective, std::uint32_t number) {
    info_.collective = collective;  // In place: copying what was just put together takes longer.
    info_.number = number;
  }
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work() {
    if (operation_ != nullptr) wait_or_abandon();
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
  // Of an operation by NCCL on memory of a device: blocks until all ranks have entered it and this
  // one has begun it there, and has the default stream of this rank's device, or the calling
  // thread's (StreamGuard), wait for its end; the host waits, if that stream is full, only until
  // there is room, and the operation is still in flight. Fails as wait_status() with what happens
  // before that; what happens later, wait() says, and the communicator's next call. Of all others,
  // wait_status().
  Status wait_on_device();
  // Gives up waiting after `timeout` and throws Timeout; the operation goes on.
  void wait_for(Duration timeout);
  // Whether the operation has become part of a CUDA graph (StreamGuard), and runs when that is
  // launched. It has ended then for the host: callbacks come at once, and done() and wait() have
  // the calling thread's stream wait for it there, as wait_on_device() does, while the capture goes
  // on.
  bool is_captured() const { return operation_ != nullptr && operation_->is_captured(); }
  // How the operation has ended, without blocking; nothing while it has not.
  std::optional<Status> status();
  // Of a receive that has ended well: the rank whose message it was.
  std::optional<Rank> source() const { return source_; }

  // Calls `callback` once when the operation has ended, however it ended: at once on this thread if
  // it has ended already, else on a thread that makes progress: one that waits for, polls or
  // destroys a Work of the job, or stretto's own. No lock is held; it may submit operations, but
  // should not wait, because that thread has others to serve. What it throws is logged. May be
  // called several times, before wait(). No StreamGuard holds in it. On stretto's own threads
  // signals are blocked, and so they are, at first, in a program that a callback starts there.
  // Throws std::bad_alloc where there is no memory to keep it, and then never calls it.
  void add_callback(Continuation callback);

  // One Work for this operation and what comes after it: calls `next` when the operation has ended
  // well, where add_callback() would. If `next` returns a Work, that is waited for as well. A
  // failure, of the operation or of the Work that `next` returns, is the failure of the whole; so
  // is what `next` throws, if it is an Error (else: internal). After a failure `next` is not
  // called.
  //
  // `next` has the StreamGuard that there is when then() is called; if a graph captures this
  // operation, the guard's stream waits for it first, and `next` is called at once.
  //
  // Takes this Work; `std::move(work).then(...)` says so. Other ranks may come to `next` at another
  // time: what it submits to a communicator must not depend on what else is submitted there
  // meanwhile. Give such chains a communicator of their own.
  template <std::invocable F>
  Work then(F next) && {
    auto step = std::make_shared<F>(std::move(next));  // A std::function would have to copy it.
    return std::move(*this).continue_with([step]() -> Work {
      if constexpr (std::same_as<std::invoke_result_t<F&>, void>) {
        (*step)();
        return Work();
      } else {
        return (*step)();
      }
    });
  }

  // One Work for all of `works`: ends when all have ended, with the first failure in their order.
  static Work all(std::vector<Work> works);

  // What was submitted: "all_reduce", "send/recv", ...; of then(), what came first, and of all(),
  // the last. Empty for Work().
  std::string_view operation() const;
  // Which of its communicator's collectives it is, counted from 1, as messages count them: "#7".
  // After 4,026,531,839 comes 1 again. 0: none.
  std::uint32_t number() const;
  // From the submission to the end; zero if it ended while it was being submitted. Nothing before
  // done(), wait() or status() has seen the end.
  std::optional<Duration> duration() const;

 private:
  friend class ChainedOperation;
  friend class communicator::ObservedBackend;

  OperationInfo info() const;
  Work continue_with(std::function<Work()> next) &&;
  void finish(Status status);
  void wait_or_abandon();

  std::shared_ptr<group::Operation> operation_;  // Null once done.
  int exceptions_when_made_ = 0;                 // That unwound this thread then.
  Status result_;
  std::optional<Rank> source_;
  OperationInfo info_;
};

}  // namespace stretto
