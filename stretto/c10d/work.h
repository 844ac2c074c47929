// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "stretto/base/mutex.h"
#include "stretto/c10d/abort_hooks.h"
#include "stretto/c10d/driver.h"
#include "stretto/c10d/flight_recorder.h"
#include "stretto/c10d/pending_works.h"
#include "stretto/communicator/communicator.h"

namespace stretto::c10d_backend {

// A timeout of PyTorch's, or a century if it is too long for our clock to count.
inline Duration duration_of(std::chrono::milliseconds timeout) {
  constexpr std::chrono::hours kCentury{24 * 36525};
  return std::min<std::chrono::milliseconds>(timeout, kCentury);
}
// kNoTimeout, of a Work or a store, means that there is no deadline.
inline Deadline deadline_of(std::chrono::milliseconds timeout) {
  return timeout == kNoTimeout ? Deadline() : Deadline::after(duration_of(timeout));
}

class OperationTensors;
struct Shared;

inline bool has_ended_well(stretto::Work& work) {
  return work.duration() && work.wait_status().ok();
}

// Begins `count` operations of `communicator`, each by submit(i), and returns one Work for all. If
// one is refused (InvalidArgument), those before it end first: destroyed by the exception, they
// would abort the communicator. If one fails otherwise, as for something that only this rank lacks,
// other ranks wait for the rest of the list. So the communicator is aborted, unless none has been
// begun.
stretto::Work submit_each(Communicator& communicator, std::size_t count,
                          c10::function_ref<stretto::Work(std::size_t)> submit);

// One operation, which a Work of PyTorch's and its futures share.
class InFlight {
 public:
  // `buffers`, if any, lives until the operation has ended. The flight recorder's entry
  // `record_number`, if any, is told of the end. `group` notes a failure, whichever thread learns
  // of it. `stream`: on which results are copied back once the operation has ended; of an operation
  // that a graph captures, the caller's stream.
  InFlight(stretto::Work work, at::TensorList outputs, std::shared_ptr<OperationTensors> buffers,
           uint64_t record_number, const std::shared_ptr<Shared>& group,
           std::optional<c10::Stream> stream);

  // The kind of operation, and its number among the group's collectives.
  const std::string_view operation;
  const std::uint32_t number;
  const c10::SmallVector<at::Tensor, 2> results;
  // Of a barrier: the collectives that this rank has begun before. A wait for its Work waits for
  // them first, as their results may have to be copied back. Its future does not.
  std::vector<std::weak_ptr<InFlight>> before;
  const std::optional<c10::Stream> stream;
  const bool is_captured;  // By a graph; then it has ended for the host.

  // Both move the operation along, and return whether it has ended. try_end() does not block.
  // end_by() may be called in a callback, also on the thread that waits for this operation.
  bool try_end();
  bool end_by(const Deadline& deadline);
  // As end_by() without a deadline, but never blocks on the lock, whose holder may be in a callback
  // that waits for this operation: makes progress until the operation has ended or the lock is
  // free.
  void end_beside_others();
  // After the end: waits until the callbacks that were there by then have returned. False if they
  // have not by the deadline. Does not wait on a thread that is in a callback or holds the lock,
  // since the callbacks may wait for that thread.
  bool wait_for_callbacks(const Deadline& deadline);
  // Runs `callback` once when the operation has ended; Work::add_callback() says on which thread.
  // Never blocks. Logs what the callback throws.
  void then(Continuation callback);

  // After the end: makes `waiting`, a stream of the device, wait for the results. There must be a
  // `stream`.
  Status let_wait(const c10::Stream& waiting);
  // Known once the operation has ended, also to its callbacks:
  bool has_ended() const { return outcome_ == nullptr || outcome_->ended; }
  bool has_called_back() const { return outcome_ == nullptr || outcome_->called_back; }
  Status status() const { return outcome_ == nullptr ? Status() : outcome_->status; }
  Duration duration() const { return outcome_ == nullptr ? Duration::zero() : outcome_->duration; }
  bool is_waited_for() const { return mutex_.is_held(); }
  // Of a receive: the sender of the message. Waits while another thread calls callbacks. In a
  // callback it does not wait, and may return nothing.
  std::optional<Rank> source();

 private:
  // The outcome, noted by the first thread that learns of the end: one that waits, or one that
  // calls callbacks.
  struct Outcome {
    void end(const Status& how);

    const TimePoint started = Clock::now();
    std::weak_ptr<Shared> group;
    uint64_t record_number = 0;
    Mutex mutex;
    std::shared_ptr<void> buffers STRETTO_GUARDED_BY(mutex);
    std::vector<Continuation> callbacks STRETTO_GUARDED_BY(mutex);
    // Do not change once it has ended.
    Status status;
    Duration duration = Duration::zero();
    std::atomic<bool> ended = false;
    std::atomic<bool> called_back = false;  // All of `callbacks` have returned.
  };

  // Held by the one thread that waits. Meanwhile it calls callbacks of other operations, which may
  // ask for this lock again. So the holder is recorded: to try to lock a std::mutex that one holds
  // is undefined.
  class WaitMutex {
   public:
    bool is_mine() const { return holder_ == std::this_thread::get_id(); }
    bool is_held() const { return holder_.load() != std::thread::id(); }
    void lock() {
      mutex_.lock();
      note_holder();
    }
    bool try_lock() { return !is_mine() && mutex_.try_lock() && note_holder(); }
    bool try_lock_until(TimePoint time) {
      return !is_mine() && mutex_.try_lock_until(time) && note_holder();
    }
    void unlock() {
      holder_ = std::thread::id();
      mutex_.unlock();
    }

   private:
    bool note_holder() {
      holder_ = std::this_thread::get_id();
      return true;
    }

    std::timed_mutex mutex_;
    std::atomic<std::thread::id> holder_;
  };

  // Whether this thread must not wait for the lock: because it holds it, or is in a callback whose
  // end the holder may wait for.
  bool must_not_block() const;
  // Makes progress until the lock is free, and takes it. Does not take it if the operation has
  // ended or the deadline has passed.
  std::unique_lock<WaitMutex> lock_beside_others(const Deadline& deadline);
  void poll_group();

  std::shared_ptr<Outcome> outcome_;  // Null if it ended well while it was being submitted.
  std::shared_ptr<OperationTensors> captured_buffers_;  // Of one that a graph captures.
  WaitMutex mutex_;
  // Destroyed before the other members. If no stream waits for what a graph captures, the caller's
  // stream waits for it then.
  stretto::Work work_;
};

// The state that all operations of one membership share.
struct Shared {
  std::weak_ptr<Communicator> communicator;
  int job_rank = 0;    // In PyTorch's job: names its flight records.
  int named_rank = 0;  // By which failures name this rank.
  Driver driver;
  PendingWorks pending{driver};
  std::shared_ptr<const AbortHooks> abort_hooks;
  std::atomic<bool> are_hooks_due = true;  // Until they are called, or the group ends in order.
  std::atomic<bool> is_over = false;       // Ended in order: cut-off operations are no failures.
  // The first failure that ends the group; getError() reports it.
  mutable Mutex mutex;
  Status failure STRETTO_GUARDED_BY(mutex);
  // Text that says which group it is, and what other numbers its ranks have.
  std::string rank_note STRETTO_GUARDED_BY(mutex);
  std::optional<c10::Stream> branch STRETTO_GUARDED_BY(mutex);

  // A stream of `device` for the results of futures that a graph captures: a stream that needs the
  // results waits for this one, and the stream of the call does not have to.
  c10::Stream branch_of(const c10::Device& device);
  // The first failure makes the flight recorder write its file, and calls the abort hooks.
  void note_failure(const Status& status);
  // The failure of an operation as PyTorch's programs are told of it: ranks have their numbers in
  // this group; if they have others in the job, the text gives those, too.
  Status told(const Status& status) const;
  // Ends all operations; the others are told what this rank "has called".
  void abort(const std::string& what);
  void call_abort_hooks();
};

// PyTorch's handle of an operation. Any thread may use it. May be dropped while the operation is in
// flight, which then ends without it.
class WorkStretto final : public ::c10d::Work {
 public:
  // `title` and `inputs` are for a profiler, if there is one.
  WorkStretto(int rank, ::c10d::OpType type, const char* title, at::TensorList inputs,
              std::shared_ptr<InFlight> operation, std::shared_ptr<Shared> shared);
  ~WorkStretto() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(); }
  // Waits until the operation has ended and, as with PyTorch's own backends, callbacks of its
  // futures have returned, which may change the results. In a callback, waits for the operation
  // alone. Throws when time is up; the operation goes on. On a device, too, the operation has ended
  // when this returns, for the host and for the calling thread's current stream. An operation
  // begins only when all ranks have come, so there is no earlier event that a stream could wait
  // for, and no other place to report its failure.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Blocks the host: results are copied on the current stream after the operation has ended, and
  // would wait there behind whatever blocks it.
  void blockCurrentStream() override { wait(); }
  // As wait(), by a deadline that holds for several works. `timeout` is for the text of a failure.
  void wait_until(const Deadline& deadline, std::chrono::milliseconds timeout);
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  // Returns milliseconds.
  float getDuration() const override;
  uint64_t getSequencenumber() const override;
  const InFlight& operation() const { return *operation_; }
  // Leaves the list of works for which graphs of PyTorch's compiler may wait, if the program uses
  // it.
  void leave_registry();

 private:
  // Whether `is` holds for all that this Work waits for: the living operations of `before`, and its
  // own.
  template <class Is>
  bool all_awaited(const Is& is) const;
  void prepare_to_wait() const;
  void end_wait();
  // A future that `complete` fulfils when the operation has ended, however it ended.
  c10::intrusive_ptr<c10::ivalue::Future> make_future(
      const c10::TypePtr& type, std::function<void(c10::ivalue::Future&, const Status&)> complete);

  const std::shared_ptr<InFlight> operation_;
  const std::shared_ptr<Shared> shared_;
  Mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_ STRETTO_GUARDED_BY(future_mutex_);
};

// The operations that one thread has submitted as a batch.
class CoalescedWork final : public ::c10d::Work {
 public:
  explicit CoalescedWork(int rank) : Work(rank, ::c10d::OpType::COALESCED) {}

  // To be called before others have this object. If an exception keeps the program from ending the
  // batch, it must keep no memory alive. So parts that have ended well are forgotten, except for
  // their streams and for results that somebody else holds, too.
  void add(c10::intrusive_ptr<WorkStretto> part);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override { wait(); }
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  // Returns the duration of the longest part.
  float getDuration() const override;
  // Returns the number of the last part.
  uint64_t getSequencenumber() const override { return number_; }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  void forget(WorkStretto& part);
  std::vector<at::Tensor> forgotten_results() const;

  std::deque<c10::intrusive_ptr<WorkStretto>> parts_;
  // Of forgotten parts; each tensor and stream once.
  std::vector<WeakTensor> results_;
  std::vector<c10::Stream> streams_;
  float longest_ms_ = 0;
  uint64_t number_ = 0;
};

}  // namespace stretto::c10d_backend
