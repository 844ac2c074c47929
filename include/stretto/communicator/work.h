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
class Observation;
}

// The caller's handle to an operation in flight. Until the operation is done, its buffers must stay
// alive and must not be written, and its output must not be read.
//
// Move-only. One thread at a time may use a Work; different threads may wait for different Works of
// one communicator. Destroying a Work that is not done waits for it, within the operation's
// deadline; an error found then is kept by the communicator, which repeats it on the next call.
//
// If a Work is destroyed by an exception that was thrown after the Work had been made, it does not
// wait for the operation: nobody knows whether this rank will still do what the others need of it.
// (It waits for up to 2 s while another rank copies from or to the buffers.) Unless the operation
// has ended, its communicator is aborted on all ranks, with an error that names the operation and
// the rank that abandoned it. The error cannot say what was thrown: C++ does not tell before it is
// caught. To throw and keep the communicator, wait first.
class [[nodiscard]] Work {
 public:
  Work() = default;  // Done, successful.
  explicit Work(std::shared_ptr<group::Operation> operation)
      : operation_(std::move(operation)), exceptions_when_made_(std::uncaught_exceptions()) {}
  explicit Work(Status failure) : result_(std::move(failure)) {}
  // Done, successful: an operation that has ended in the call that submitted it.
  Work(Collective collective, std::uint32_t number) {
    info_.collective = collective;  // Field by field: copying a whole struct takes longer.
    info_.number = number;
  }
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work() {
    if (operation_ != nullptr) wait_or_abandon();
  }

  // Whether the operation has ended, well or badly. Does not block.
  bool done();
  // Blocks until the operation has ended. Throws its failure: PeerLost, Timeout, Mismatch, ... May
  // be called again, with the same result.
  void wait() {
    if (operation_ != nullptr || !result_.ok()) wait_status().or_throw();
  }
  // The same, but returns the failure.
  Status wait_status();
  // For an operation by NCCL on device memory: blocks until all ranks have entered it and this rank
  // has begun it on the device. Then makes a stream wait for its end: that of the calling thread's
  // StreamGuard, or else the default stream of this rank's device. (If that stream is full, the
  // host waits for room in it.) The operation is then still in flight. Returns failures up to this
  // point; later ones come from wait() and from the communicator's next call. For all other
  // operations the same as wait_status().
  Status wait_on_device();
  // Gives up waiting after `timeout`, which must not be negative, and throws Timeout; the operation
  // goes on.
  void wait_for(Duration timeout);
  // Whether the operation has become part of a CUDA graph (StreamGuard) and runs when the graph is
  // launched. For the host it has then ended: callbacks run at once. While the capture goes on,
  // done() and wait() make the calling thread's stream wait for it in the graph, as
  // wait_on_device() does.
  bool is_captured() const { return operation_ != nullptr && operation_->is_captured(); }
  // How the operation has ended; nothing if it has not. Does not block.
  std::optional<Status> status();
  // For a receive that has succeeded: the rank that sent the message.
  std::optional<Rank> source() const { return source_; }

  // Calls `callback` once when the operation has ended, however it ended: at once on this thread if
  // it has ended already, else on a thread that makes progress. That is a thread that waits for,
  // polls or destroys a Work of the job, or one of stretto's own. No lock is held. The callback may
  // submit operations but should not wait, because that thread serves others, too. Exceptions that
  // it throws are logged. May be called several times, before wait(). No StreamGuard holds in a
  // callback. On stretto's own threads signals are blocked, and programs that a callback starts
  // there inherit that. Throws std::bad_alloc if there is no memory to keep the callback, which is
  // then never called.
  void add_callback(Continuation callback);

  // Returns one Work for this operation and what follows it: calls `next` when the operation has
  // succeeded, on a thread as for add_callback(). If `next` returns a Work, that is waited for as
  // well. The whole fails if the operation fails (`next` is then not called), if the Work that
  // `next` returns fails, or if `next` throws (an Error keeps its status; anything else becomes
  // `internal`).
  //
  // `next` runs under the StreamGuard that holds when then() is called. If a graph captures this
  // operation, the guard's stream first waits for it, and `next` is called at once.
  //
  // Takes this Work, as in `std::move(work).then(...)`. Ranks may call `next` at different times,
  // so the operations that it submits to a communicator must not depend on the order of others
  // there. Give such chains a communicator of their own.
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

  // One Work for all of `works`: ends when all have ended, with the first failure in list order.
  static Work all(std::vector<Work> works);

  // The name of the operation: "all_reduce", "send/recv", ... A Work of then() has the name of its
  // first operation, one of all() that of the last. Empty for Work().
  std::string_view operation() const;
  // The number of this collective in its communicator, counted from 1, as in messages: "#7". 1
  // follows 4,026,531,839. 0: it has none.
  std::uint32_t number() const;
  // The time from submission to end; zero if the operation ended in the call that submitted it.
  // Nothing until done(), wait() or status() has seen the end.
  std::optional<Duration> duration() const;

 private:
  friend class ChainedOperation;
  friend class communicator::Observation;

  OperationInfo info() const;
  Work continue_with(std::function<Work()> next) &&;
  void finish(Status status);
  void wait_or_abandon();

  std::shared_ptr<group::Operation> operation_;  // Null once done.
  int exceptions_when_made_ = 0;                 // Those unwinding this thread then.
  Status result_;
  std::optional<Rank> source_;
  OperationInfo info_;
};

}  // namespace stretto
