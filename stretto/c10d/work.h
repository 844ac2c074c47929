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

// A timeout of PyTorch's, or a century, if it is so long that our clock cannot count it.
inline Duration duration_of(std::chrono::milliseconds timeout) {
  constexpr std::chrono::hours kCentury{24 * 36525};
  return std::min<std::chrono::milliseconds>(timeout, kCentury);
}
// kNoTimeout, of a Work as of a store: never.
inline Deadline deadline_of(std::chrono::milliseconds timeout) {
  return timeout == kNoTimeout ? Deadline() : Deadline::after(duration_of(timeout));
}

class OperationTensors;
struct Shared;

inline bool has_ended_well(stretto::Work& work) {
  return work.duration() && work.wait_status().ok();
}

// One Work for several operations of `communicator`, of which submit(i) begins each. If one of them
// is refused, those before it end first: destroyed by the exception, they would abort the
// communicator. If one fails for want of something that only this rank lacks, the others wait for
// the rest of the list: then the communicator is aborted, unless none has been begun.
stretto::Work submit_each(Communicator& communicator, std::size_t count,
                          c10::function_ref<stretto::Work(std::size_t)> submit);

// One operation, of which a Work of PyTorch's and those who wait for its future know.
class InFlight {
 public:
  // `buffers`, if any, lives until the operation has ended. The entry of the flight recorder with
  // that number, if any, is told.
  // `group` notes a failure, whoever learns of it. `stream`: that on which results come to where
  // they belong, once the operation has ended; of one that a graph captures, the caller's.
  InFlight(stretto::Work work, at::TensorList outputs, std::shared_ptr<OperationTensors> buffers,
           uint64_t record_number, const std::shared_ptr<Shared>& group,
           std::optional<c10::Stream> stream);

  // What was submitted, and as which of the group's collectives.
  const std::string_view operation;
  const std::uint32_t number;
  const c10::SmallVector<at::Tensor, 2> results;
  // Of a barrier, what this rank has begun before. Whoever waits for its Work waits for them first,
  // as their results may have to be copied to where they belong. Its future does not.
  std::vector<std::weak_ptr<InFlight>> before;
  const std::optional<c10::Stream> stream;
  const bool is_captured;  // By a graph: for the host it has ended.

  // Both move the operation along, and say whether it has ended. The first does not block. The
  // other may be called in a callback, also on the thread that waits for this operation.
  bool try_end();
  bool end_by(const Deadline& deadline);
  // As end_by() at any time, but never blocks on the lock, whose holder may be in a callback that
  // waits for this operation: makes progress until the operation has ended or the lock is free.
  void end_beside_others();
  // Once it has ended: waits until callbacks that it had by then have returned. False: they have
  // not when time is up. Who may be in such a callback, or be waited for by one, does not wait.
  bool wait_for_callbacks(const Deadline& deadline);
  // Runs `callback` once when the operation has ended; on which thread, see Work::add_callback().
  // Does not block, whoever waits. What the callback throws is logged.
  void then(Continuation callback);

  // Once it has ended: has a stream of the device wait for its results, which must have one.
  Status let_wait(const c10::Stream& waiting);
  // Once it has ended, which its callbacks see, too:
  bool has_ended() const { return outcome_ == nullptr || outcome_->ended; }
  bool has_called_back() const { return outcome_ == nullptr || outcome_->called_back; }
  Status status() const { return outcome_ == nullptr ? Status() : outcome_->status; }
  Duration duration() const { return outcome_ == nullptr ? Duration::zero() : outcome_->duration; }
  bool is_waited_for() const { return mutex_.is_held(); }
  // Of a receive, whose message it was. Waits while another thread calls callbacks. Called in one,
  // it does not, and may know nothing yet.
  std::optional<Rank> source();

 private:
  // The first one that learns of the end says so here: who waits, or whoever calls callbacks.
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
    std::atomic<bool> called_back = false;  // Of the callbacks above, all have returned.
  };

  // Held by the one thread that waits. That calls callbacks of other operations meanwhile, in which
  // it may come again, and must know: to try to lock a std::mutex that one has is undefined.
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

  // Whether this thread must not wait for the lock: it has it, or is in a callback, for whose end
  // the thread that has it may wait.
  bool must_not_block() const;
  // Makes progress until the lock is free. Without it, if the operation has ended or time is up.
  std::unique_lock<WaitMutex> lock_beside_others(const Deadline& deadline);
  void poll_group();

  std::shared_ptr<Outcome> outcome_;  // Null: it ended well while it was being submitted.
  std::shared_ptr<OperationTensors> captured_buffers_;  // Of one that a graph captures.
  WaitMutex mutex_;
  // This member is destroyed first. If no stream waits for what a graph captures, the stream of the
  // caller waits for it then.
  stretto::Work work_;
};

// What all operations of one membership share.
struct Shared {
  std::weak_ptr<Communicator> communicator;
  int job_rank = 0;    // Of PyTorch's job: the process that records are of.
  int named_rank = 0;  // By which failures name this rank.
  Driver driver;
  PendingWorks pending{driver};
  std::shared_ptr<const AbortHooks> abort_hooks;
  std::atomic<bool> are_hooks_due = true;  // Until they are called, or the group ends in order.
  std::atomic<bool> is_over = false;  // It has ended in order: what that cuts off is no failure.
  // The first failure that the group does not outlive; what getError() tells.
  mutable Mutex mutex;
  Status failure STRETTO_GUARDED_BY(mutex);
  // Which group it is, and what other numbers its ranks have.
  std::string rank_note STRETTO_GUARDED_BY(mutex);
  std::optional<c10::Stream> branch STRETTO_GUARDED_BY(mutex);

  // A stream of that device, on which results of futures are that a graph captures: so that who
  // needs them waits for them, and not the stream of the call.
  c10::Stream branch_of(const c10::Device& device);
  // The first one has the flight recorder write its file, and calls the abort hooks.
  void note_failure(const Status& status);
  // How an operation failed, as PyTorch's programs are told: ranks have their numbers in this
  // group, and where those in the job are others, the text says which.
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
  // Callbacks of its futures have returned, too, as with PyTorch's own backends: they may change
  // the results. In a callback, this waits for the operation alone.
  // Throws when time is up; the operation goes on.
  // On a device, too, the operation has ended when this returns, for the host and for the calling
  // thread's current stream: it is begun only when all ranks have come, so there is no event before
  // that a stream could wait for, and no other place where its failure could be told.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Blocks the host: results come to the current stream when the operation has ended, and would
  // wait there behind what blocks it.
  void blockCurrentStream() override { wait(); }
  // The same, until the end of a time for which the caller waits for several.
  void wait_until(const Deadline& deadline, std::chrono::milliseconds timeout);
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  // Returns milliseconds.
  float getDuration() const override;
  uint64_t getSequencenumber() const override;
  const InFlight& operation() const { return *operation_; }
  // Of works for which graphs of PyTorch's compiler may wait, where a program asks for it.
  void leave_registry();

 private:
  // Whether it holds for what its Work waits for: those before, as far as they live, and itself.
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

// Several operations that one thread has submitted, together.
class CoalescedWork final : public ::c10d::Work {
 public:
  explicit CoalescedWork(int rank) : Work(rank, ::c10d::OpType::COALESCED) {}

  // While nobody else has it. An exception may keep the program from the end of the batch, which
  // then must keep no memory alive: it forgets what has ended well, but for results that somebody
  // else holds, too, and the streams on which they come.
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
  // Returns that of the longest.
  float getDuration() const override;
  // Returns that of the last one.
  uint64_t getSequencenumber() const override { return number_; }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  void forget(WorkStretto& part);
  std::vector<at::Tensor> forgotten_results() const;

  std::deque<c10::intrusive_ptr<WorkStretto>> parts_;
  // Of those forgotten; each tensor and stream once.
  std::vector<WeakTensor> results_;
  std::vector<c10::Stream> streams_;
  float longest_ms_ = 0;
  uint64_t number_ = 0;
};

}  // namespace stretto::c10d_backend
