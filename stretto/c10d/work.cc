// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/work.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "stretto/base/call_back.h"
#include "stretto/base/stream_guard.h"
#include "stretto/c10d/errors.h"
#include "stretto/c10d/operation_tensors.h"
#include "stretto/c10d/without_gil.h"
#include "stretto/torch_device/streams.h"

namespace stretto::c10d_backend {
namespace {

constexpr std::chrono::microseconds kNap(100);  // Between looks at state whose change wakes nobody.

using c10::ivalue::Future;

// The devices of `tensors`, which a future has to know to hand the tensors to a program.
std::vector<c10::Device> devices_of(at::TensorList tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.device().is_cpu()) devices.push_back(tensor.device());
  }
  return devices;
}

// The stream for a future's events: that of the results, if there is one. Else the default stream,
// if a graph captures the current stream of the thread that happens to end the operation.
std::optional<c10::Stream> stream_of_events(const Future& future,
                                            const std::optional<c10::Stream>& of_results) {
  if (of_results) return of_results;
  for (const c10::Device& device : future.devices()) {
    if (is_captured(current_stream(device))) return default_stream(device);
  }
  return std::nullopt;
}

::c10d::WorkResult result_of(const Status& status) {
  if (status.ok()) return ::c10d::WorkResult::SUCCESS;
  return status.code() == StatusCode::timeout ? ::c10d::WorkResult::TIMEOUT
                                              : ::c10d::WorkResult::COMM_ERROR;
}

std::optional<std::vector<at::Tensor>> inputs_for_profiler(at::TensorList inputs) {
  return at::hasCallbacks() ? std::optional(inputs.vec()) : std::nullopt;
}

// Whether this thread calls a callback now.
thread_local bool is_in_callback = false;

// Logs what the program's callback throws: the caller is in the middle of something else. Frees the
// callback as a part of the call: it may own objects of Python's, whose end may wait, too.
void call(Continuation callback, const Status& status) {
  const bool was_in_callback = std::exchange(is_in_callback, true);
  call_back(callback, status);
  callback = nullptr;
  is_in_callback = was_in_callback;
}

}  // namespace

stretto::Work submit_each(Communicator& communicator, std::size_t count,
                          c10::function_ref<stretto::Work(std::size_t)> submit) {
  std::vector<stretto::Work> works;
  try {
    while (works.size() < count) works.push_back(submit(works.size()));
  } catch (const InvalidArgument&) {
    for (stretto::Work& work : works) (void)work.wait_status();
    throw;
  } catch (const std::exception& error) {
    if (!works.empty() && !communicator.has_failed()) communicator.abort(error.what());
    throw;
  }
  return stretto::Work::all(std::move(works));
}

void InFlight::Outcome::end(const Status& how) {
  if (ended) return;
  flight_entries().end(record_number, how.ok());
  // Before anybody can see the end and ask the group for the cause. This calls the program's hooks,
  // so the lock is not held.
  const std::shared_ptr<Shared> alive = how.ok() ? nullptr : group.lock();
  if (alive != nullptr) alive->note_failure(how);
  std::shared_ptr<void> freed;  // Not under the lock: tensors may need the lock of Python.
  std::vector<Continuation> due;
  {
    const MutexLock guard(mutex);
    if (ended) return;
    status = how;
    duration = Clock::now() - started;
    freed = std::move(buffers);
    due = std::move(callbacks);
    ended = true;
    called_back = due.empty();
  }
  if (due.empty()) return;
  Driver::before_callbacks();
  // Each callback is freed after its call: the next may wait for the end of objects that it owns.
  for (Continuation& callback : due) call(std::move(callback), status);
  called_back = true;
}

InFlight::InFlight(stretto::Work work, at::TensorList outputs,
                   std::shared_ptr<OperationTensors> buffers, uint64_t record_number,
                   const std::shared_ptr<Shared>& group, std::optional<c10::Stream> of_results)
    : operation(work.operation()),
      number(work.number()),
      results(outputs.begin(), outputs.end()),
      stream(of_results),
      is_captured(work.is_captured()),
      work_(std::move(work)) {
  if (is_captured) captured_buffers_ = std::move(buffers);
  if (is_captured || has_ended_well(work_)) {
    flight_entries().end(record_number, true);
    return;
  }
  outcome_ = std::make_shared<Outcome>();
  outcome_->buffers = std::move(buffers);
  outcome_->record_number = record_number;
  outcome_->group = group;
  work_.add_callback([outcome = outcome_](const Status& how) { outcome->end(how); });
}

Status InFlight::let_wait(const c10::Stream& waiting) {
  if (!is_captured) {
    stretto::let_wait(waiting, *stream);
    return {};
  }
  const std::lock_guard lock(mutex_);
  const StreamGuard on_stream(waiting.native_handle());
  STRETTO_RETURN_IF_ERROR(work_.wait_on_device());
  if (captured_buffers_ != nullptr) captured_buffers_->use_on(waiting);
  return {};
}

bool InFlight::try_end() {
  if (has_ended()) return true;
  if (mutex_.is_mine()) poll_group();
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return has_ended();  // The thread that waits moves it along.
  if (const std::optional<Status> how = work_.status()) outcome_->end(*how);
  return has_ended();
}

bool InFlight::end_by(const Deadline& deadline) {
  if (has_ended()) return true;
  const auto lock =
      must_not_block() ? lock_beside_others(deadline) : std::unique_lock(mutex_, deadline.time());
  if (!lock) return has_ended();
  try {
    work_.wait_for(deadline.remaining());
  } catch (const Error&) {
    // The time is up, or the operation has failed: its status tells which.
  }
  if (const std::optional<Status> how = work_.status()) outcome_->end(*how);
  return has_ended();
}

void InFlight::end_beside_others() {
  if (const auto lock = lock_beside_others(Deadline())) outcome_->end(work_.wait_status());
}

// The callbacks may wait for other operations, which this thread moves along.
bool InFlight::wait_for_callbacks(const Deadline& deadline) {
  while (!has_called_back() && !must_not_block()) {
    if (deadline.passed()) return false;
    poll_group();
    std::this_thread::sleep_for(kNap);
  }
  return true;
}

bool InFlight::must_not_block() const { return is_in_callback || mutex_.is_mine(); }

std::unique_lock<InFlight::WaitMutex> InFlight::lock_beside_others(const Deadline& deadline) {
  std::unique_lock lock(mutex_, std::defer_lock);
  while (!has_ended() && !lock.try_lock() && !deadline.passed()) {
    poll_group();
    std::this_thread::sleep_for(kNap);
  }
  return lock;
}

void InFlight::poll_group() {
  const std::shared_ptr<Shared> group = outcome_->group.lock();
  const auto communicator = group == nullptr ? nullptr : group->communicator.lock();
  if (communicator != nullptr) communicator->poll();
}

std::optional<Rank> InFlight::source() {
  if (!try_end()) return std::nullopt;
  const auto lock =
      must_not_block() ? std::unique_lock(mutex_, std::try_to_lock) : std::unique_lock(mutex_);
  if (!lock || !work_.done()) return std::nullopt;
  return work_.source();
}

void InFlight::then(Continuation callback) {
  if (outcome_ != nullptr) {
    const MutexLock guard(outcome_->mutex);
    if (!has_ended()) return outcome_->callbacks.push_back(std::move(callback));
  }
  call(std::move(callback), status());
}

void Shared::note_failure(const Status& status) {
  if (status.code() == StatusCode::invalid_argument || is_over) return;
  {
    const MutexLock lock(mutex);
    if (!failure.ok()) return;
    failure = status;
  }
  dump_flight_record(job_rank);
  call_abort_hooks();
}

void Shared::call_abort_hooks() {
  if (are_hooks_due.exchange(false)) abort_hooks->call();
}

Status Shared::told(const Status& status) const {
  if (status.ok() || status.code() == StatusCode::invalid_argument) return status;
  std::string text(status.message());
  if (status.code() == StatusCode::timeout) {
    text +=
        ". A longer timeout can be given to init_process_group(), new_group() or a call that takes "
        "one.";
  }
  const MutexLock lock(mutex);
  if (!rank_note.empty()) text += " " + rank_note;
  return {status.code(), std::move(text)};
}

c10::Stream Shared::branch_of(const c10::Device& device) {
  const MutexLock lock(mutex);
  if (!branch) branch = new_stream(device);
  return *branch;
}

void Shared::abort(const std::string& what) {
  const std::shared_ptr<Communicator> alive = communicator.lock();
  if (alive == nullptr) return;
  call_abort_hooks();
  alive->abort(fmt::format("rank {} {}", named_rank, what));
}

WorkStretto::WorkStretto(int rank, ::c10d::OpType type, const char* title, at::TensorList inputs,
                         std::shared_ptr<InFlight> operation, std::shared_ptr<Shared> shared)
    : Work(rank, type, at::hasCallbacks() ? title : nullptr, inputs_for_profiler(inputs)),
      operation_(std::move(operation)),
      shared_(std::move(shared)) {
  if (recordFunctionEndCallback_ == nullptr) return;
  operation_->then([end = recordFunctionEndCallback_](const Status&) { end(); });
}

WorkStretto::~WorkStretto() {
  if (operation_->has_ended()) return;
  const WithoutGil without_gil;
  if (!operation_->try_end()) shared_->driver.drive(operation_);
}

template <class Is>
bool WorkStretto::all_awaited(const Is& is) const {
  const auto holds = [&](const std::weak_ptr<InFlight>& each) {
    const auto operation = each.lock();
    return operation == nullptr || is(*operation);
  };
  return std::ranges::all_of(operation_->before, holds) && is(*operation_);
}

bool WorkStretto::isCompleted() {
  if (operation_->has_called_back() && operation_->before.empty()) return true;
  const WithoutGil without_gil;
  if (!all_awaited([](InFlight& each) { return each.try_end(); })) {
    PendingWorks::drive_all_but(&shared_->pending);  // Programs wait by asking, too.
    return false;
  }
  return operation_->wait_for_callbacks(Deadline::after({}));
}

bool WorkStretto::isSuccess() const { return operation_->has_ended() && operation_->status().ok(); }

std::exception_ptr WorkStretto::exception() const {
  if (!operation_->has_ended() || operation_->status().ok()) return nullptr;
  return exception_for_torch(shared_->told(operation_->status()));
}

int WorkStretto::sourceRank() const {
  const WithoutGil without_gil;
  const std::optional<Rank> source = operation_->source();
  TORCH_CHECK(source, "only a receive that has ended knows whose message it was");
  return source->value();
}

std::vector<at::Tensor> WorkStretto::result() {
  TORCH_CHECK(operation_->has_ended() || isCompleted(),
              "the operation has not ended; call wait() before result()");
  return {operation_->results.begin(), operation_->results.end()};
}

// A forked child has no part in operations of its parent, and threads of its parent may hold their
// locks.
void WorkStretto::prepare_to_wait() const {
  const auto has_ended = [](const InFlight& each) { return each.has_ended(); };
  if (!shared_->pending.is_here() && !all_awaited(has_ended)) {
    refuse(
        "this process was forked from the one that has begun this operation, and cannot wait for "
        "it: fork before init_process_group(), or start a program (exec)");
  }
  if (!operation_->try_end()) PendingWorks::drive_all_but(&shared_->pending);
}

bool WorkStretto::wait(std::chrono::milliseconds timeout) {
  wait_until(deadline_of(timeout), timeout);
  return true;
}

void WorkStretto::wait_until(const Deadline& deadline, std::chrono::milliseconds timeout) {
  if (!operation_->has_called_back() || !operation_->before.empty()) {
    const WithoutGil without_gil;
    prepare_to_wait();
    if (!all_awaited([&](InFlight& each) { return each.end_by(deadline); }) ||
        !operation_->wait_for_callbacks(deadline)) {
      throw_for_torch(status_of(
          StatusCode::timeout,
          "rank {}: {}#{}{} not ended within the {} ms for which wait() was to wait; that goes on",
          rank_, operation_->operation, operation_->number,
          operation_->has_ended() ? "'s callbacks have" : " has", timeout.count()));
    }
  }
  end_wait();
}

void WorkStretto::leave_registry() {
  if (!::c10d::allow_inflight_collective_as_graph_input()) return;
  ::c10d::unregister_work(c10::intrusive_ptr<WorkStretto>::unsafe_reclaim_from_nonowning(this));
}

void WorkStretto::end_wait() {
  leave_registry();
  const Status status = operation_->status();
  if (!status.ok()) throw_for_torch(shared_->told(status));
  if (!operation_->stream) return;
  const Status waits = operation_->let_wait(current_stream(operation_->stream->device()));
  if (!waits.ok()) throw_for_torch(shared_->told(waits));
}

void WorkStretto::abort() {
  shared_->abort(
      fmt::format("has called abort() of its {}#{}", operation_->operation, operation_->number));
}

c10::intrusive_ptr<Future> WorkStretto::make_future(
    const c10::TypePtr& type, std::function<void(Future&, const Status&)> complete) {
  auto future = c10::make_intrusive<Future>(type, devices_of(operation_->results));
  const WithoutGil without_gil;
  std::optional<c10::Stream> stream = operation_->stream;
  Status waits;
  if (operation_->is_captured) {
    stream = shared_->branch_of(stream->device());
    waits = operation_->let_wait(*stream);
  }
  shared_->pending.count_future(1);
  operation_->then([future, complete = std::move(complete), stream, waits,
                    shared = std::weak_ptr<Shared>(shared_)](const Status& ended) {
    const Status& status = ended.ok() ? waits : ended;
    const std::shared_ptr<Shared> alive = shared.lock();
    if (alive != nullptr) alive->pending.count_future(-1);
    try {
      // Callbacks run on the device that is current here, and wait for the stream that is.
      const auto& devices = future->devices();
      const c10::OptionalDeviceGuard on_device(devices.empty() ? std::nullopt
                                                               : std::optional(devices.front()));
      const c10::OptionalStreamGuard on_stream(stream_of_events(*future, stream));
      complete(*future, alive != nullptr ? alive->told(status) : status);
    } catch (const std::exception&) {  // A failure of the device.
      if (!future->completed()) future->setError(std::current_exception());
    }
  });
  // The progress thread, where there is one, may be in a callback that waits for this.
  if (future->completed()) return future;
  shared_->driver.drive(operation_);
  PendingWorks::drive_all_but(&shared_->pending);
  return future;
}

c10::intrusive_ptr<Future> WorkStretto::getFuture() {
  const WithoutGil without_gil;  // Before the lock: who waits for it must not hold the GIL.
  const MutexLock lock(future_mutex_);
  if (future_ != nullptr) return future_;
  future_ = make_future(
      c10::ListType::ofTensors(),
      [results = at::TensorList(operation_->results).vec()](Future& future, const Status& status) {
        if (status.ok()) {
          future.markCompleted(c10::IValue(results));
        } else {
          future.setError(exception_for_torch(status));
        }
      });
  return future_;
}

c10::intrusive_ptr<Future> WorkStretto::getFutureResult() {
  return make_future(c10::IntType::get(), [](Future& future, const Status& status) {
    future.markCompleted(c10::IValue(static_cast<int64_t>(result_of(status))));
  });
}

float WorkStretto::getDuration() const {
  TORCH_CHECK(operation_->has_ended(), "the operation has not ended; it has no duration yet");
  return static_cast<float>(seconds(operation_->duration()) * 1e3);
}

uint64_t WorkStretto::getSequencenumber() const { return operation_->number; }

}  // namespace stretto::c10d_backend
