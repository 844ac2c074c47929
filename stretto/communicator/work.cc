// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/work.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>

#include "stretto/base/call_back.h"
#include "stretto/base/catch_all.h"
#include "stretto/base/error.h"
#include "stretto/base/mutex.h"
#include "stretto/base/owner_process.h"
#include "stretto/base/refuse.h"
#include "stretto/base/stream_guard.h"
#include "stretto/base/wait_until.h"

namespace stretto {

Work& Work::operator=(Work&& other) noexcept {
  if (this == &other) return *this;
  Work ended(std::move(*this));  // Its destructor waits or abandons.
  operation_ = std::move(other.operation_);
  exceptions_when_made_ = other.exceptions_when_made_;
  result_ = std::move(other.result_);
  source_ = other.source_;
  info_ = other.info_;
  return *this;
}

void Work::wait_or_abandon() {
  if (std::uncaught_exceptions() > exceptions_when_made_) operation_->abandon();
  // A failure is not reported here; the communicator keeps it.
  operation_->end();
  operation_.reset();
}

bool Work::done() {
  if (operation_ == nullptr) return true;
  if (!operation_->poll()) return false;
  finish(operation_->wait(Deadline()));
  return true;
}

void Work::finish(Status status) {
  result_ = std::move(status);
  if (result_.ok()) source_ = operation_->source();
  info_ = operation_->info();
  operation_.reset();
}

Status Work::wait_status() {
  if (operation_ != nullptr) finish(operation_->wait(Deadline()));
  return result_;
}

Status Work::wait_on_device() {
  if (operation_ == nullptr) return result_;
  const Status begun = operation_->wait_on_device();
  return begun.ok() ? begun : wait_status();
}

std::optional<Status> Work::status() {
  if (!done()) return std::nullopt;
  return wait_status();
}

void Work::wait_for(Duration timeout) {
  if (timeout < Duration::zero()) {
    refuse("wait_for: {:g} s is negative", seconds(timeout));
  }
  if (operation_ == nullptr) return result_.or_throw();
  if (!operation_->poll()) {
    const Status status = operation_->wait(Deadline::after(timeout));
    if (!operation_->poll()) return status.or_throw();
  }
  wait();
}

void Work::add_callback(Continuation callback) {
  const StreamGuard none(nullptr);  // No stream, as when the engine calls it.
  if (operation_ == nullptr) return call_back(callback, result_);
  operation_->then(std::move(callback));
}

OperationInfo Work::info() const { return operation_ != nullptr ? operation_->info() : info_; }

std::string_view Work::operation() const {
  const std::optional<Collective> collective = info().collective;
  return collective ? name(*collective) : std::string_view();
}

std::uint32_t Work::number() const { return info().number; }

std::optional<Duration> Work::duration() const {
  return operation_ == nullptr ? std::optional(info_.duration) : std::nullopt;
}

namespace {

// An operation that has ended already, as part of a joined or chained operation.
class EndedOperation final : public group::Operation {
 public:
  explicit EndedOperation(Status status, const OperationInfo& info = {},
                          std::optional<Rank> source = std::nullopt)
      : status_(std::move(status)), info_(info), source_(source) {}
  bool poll() override { return true; }
  Status wait(Deadline) override { return status_; }
  void then(Continuation continuation) override { call_back(continuation, status_); }
  void abandon() override {}
  std::optional<Rank> source() const override { return source_; }
  OperationInfo info() const override { return info_; }

 private:
  const Status status_;
  const OperationInfo info_;
  const std::optional<Rank> source_;
};

// Several operations for which one Work stands. It has the name and number of the last one.
class JoinedOperation final : public group::Operation {
 public:
  JoinedOperation(std::vector<std::shared_ptr<group::Operation>> parts, const OperationInfo& last)
      : parts_(std::move(parts)), last_(last) {}

  bool poll() override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part->poll(); });
  }
  Status wait(Deadline deadline) override {
    return wait_for_each([&](group::Operation& part) { return part.wait(deadline); });
  }
  Status wait_on_device() override {
    return wait_for_each([](group::Operation& part) { return part.wait_on_device(); });
  }
  void end() override {
    for (const auto& part : parts_) part->end();
  }
  bool is_captured() const override {
    return std::ranges::any_of(parts_, [](const auto& part) { return part->is_captured(); });
  }
  void then(Continuation continuation) override;
  void abandon() override {
    for (const auto& part : parts_) part->abandon();
  }
  OperationInfo info() const override {
    OperationInfo info = last_;
    for (const auto& part : parts_) info.duration = std::max(info.duration, part->info().duration);
    return info;
  }

 private:
  template <class Wait>
  Status wait_for_each(const Wait& wait) {
    Status first;
    for (const auto& part : parts_) {
      const Status status = wait(*part);
      if (first.ok()) first = status;
    }
    return first;
  }

  std::vector<std::shared_ptr<group::Operation>> parts_;
  const OperationInfo last_;
};

void JoinedOperation::then(Continuation continuation) {
  // Parts may end on different threads.
  struct Countdown {
    std::atomic<std::size_t> left;
    std::vector<Status> statuses;  // Each part writes its own.
    Continuation continuation;
  };
  auto countdown = std::make_shared<Countdown>();
  countdown->left = parts_.size();
  countdown->statuses.resize(parts_.size());
  countdown->continuation = std::move(continuation);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i]->then([countdown, i](const Status& status) {
      countdown->statuses[i] = status;
      if (countdown->left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
      const auto failed =
          std::ranges::find_if(countdown->statuses, [](const Status& each) { return !each.ok(); });
      countdown->continuation(failed == countdown->statuses.end() ? Status() : *failed);
    });
  }
}

}  // namespace

Work Work::all(std::vector<Work> works) {
  if (works.empty()) return Work();
  if (works.size() == 1) return std::move(works.front());
  const OperationInfo last = works.back().info();
  std::vector<std::shared_ptr<group::Operation>> parts;
  parts.reserve(works.size());  // It may throw, so before the works are moved from.
  for (Work& work : works) {
    if (work.operation_ != nullptr) {
      parts.push_back(std::move(work.operation_));
    } else if (!work.result_.ok()) {
      parts.push_back(std::make_shared<EndedOperation>(std::move(work.result_)));
    }
  }
  if (parts.empty()) return std::move(works.back());
  return Work(std::make_shared<JoinedOperation>(std::move(parts), last));
}

// The result of Work::then(): an operation, and the second one once it has begun.
class ChainedOperation final : public group::Operation,
                               public std::enable_shared_from_this<ChainedOperation> {
 public:
  explicit ChainedOperation(std::shared_ptr<group::Operation> first) : first_(std::move(first)) {}

  void start(std::function<Work()> next) {
    // In a CUDA graph, later work comes after the first operation only if a stream has waited for
    // it.
    if (first_->is_captured()) return resume(first_->wait_on_device(), next);
    first_->then([chain = shared_from_this(), next = std::move(next)](const Status& status) {
      chain->resume(status, next);
    });
  }

  bool poll() override;
  Status wait(Deadline deadline) override;
  void then(Continuation continuation) override;
  void abandon() override;
  bool is_captured() const override { return current()->is_captured(); }
  std::optional<Rank> source() const override { return first_->source(); }
  OperationInfo info() const override;

 private:
  void resume(const Status& status, const std::function<Work()>& next);
  void end(const Status& status);
  // The operation to wait for now.
  std::shared_ptr<group::Operation> current() const {
    const MutexLock guard(mutex_);
    return second_ != nullptr ? second_ : first_;
  }
  template <class Holds>
  bool comes_true(const Deadline& deadline, const Holds& holds) {
    MutexLock held(mutex_);
    return wait_until(changed_, held, deadline, holds).value();
  }

  const std::shared_ptr<group::Operation> first_;
  const OwnerProcess owner_process_;
  void* const stream_ = StreamGuard::current();
  const TimePoint started_ = Clock::now();
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<group::Operation> second_
      STRETTO_GUARDED_BY(mutex_);  // Null: not begun, or it has ended at once.
  bool begun_ STRETTO_GUARDED_BY(mutex_) =
      false;  // Whether `next` has been called, or will never be.
  bool abandoned_ STRETTO_GUARDED_BY(mutex_) = false;
  bool done_ STRETTO_GUARDED_BY(mutex_) = false;
  TimePoint ended_ STRETTO_GUARDED_BY(mutex_);
  Status status_;
  std::vector<Continuation> continuations_ STRETTO_GUARDED_BY(mutex_);
};

void ChainedOperation::resume(const Status& status, const std::function<Work()>& next) {
  bool abandoned = false;
  {
    const MutexLock guard(mutex_);
    abandoned = abandoned_;
  }
  Work second(status);
  const StreamGuard behind(stream_);  // On whichever thread it runs.
  if (status.ok() && abandoned) {
    second = Work(Status(StatusCode::aborted, "abandoned before its second part had begun"));
  } else if (status.ok()) {
    catch_all(
        [&] {
          try {
            second = next();
          } catch (const Error& error) {
            second = Work(error.status());
          }
        },
        [&](const char* what) {
          second =
              Work(status_of(StatusCode::internal, "what Work::then() was given threw: {}", what));
        });
  }
  std::shared_ptr<group::Operation> operation = std::move(second.operation_);
  {
    const MutexLock guard(mutex_);
    second_ = operation;
    begun_ = true;
    abandoned = abandoned_;
  }
  changed_.notify_all();
  if (operation == nullptr) return end(second.result_);
  // An abandon() while the second part was begun has reached only the first part.
  if (abandoned) operation->abandon();
  operation->then([chain = shared_from_this()](const Status& ended) { chain->end(ended); });
}

void ChainedOperation::end(const Status& status) {
  std::vector<Continuation> due;
  {
    const MutexLock guard(mutex_);
    status_ = status;
    ended_ = Clock::now();
    done_ = true;
    due = std::move(continuations_);
  }
  changed_.notify_all();
  for (const Continuation& continuation : due) call_back(continuation, status);
}

bool ChainedOperation::poll() {
  (void)current()->poll();
  const MutexLock guard(mutex_);
  return done_;
}

// Waiting for a part moves it along, but another thread may run resume() or end() when it has
// ended.
Status ChainedOperation::wait(Deadline deadline) {
  const Status first = first_->wait(deadline);
  // In a forked child no thread continues the chain.
  if (!owner_process_.is_here() && !poll()) {
    return first.ok() ? Status(StatusCode::invalid_argument,
                               "this process was forked from the one that has begun this chain of "
                               "operations, and cannot wait for what is left of it")
                      : first;
  }
  if (comes_true(deadline, [this]() STRETTO_REQUIRES(mutex_) { return begun_; }))
    (void)current()->wait(deadline);
  if (comes_true(deadline, [this]() STRETTO_REQUIRES(mutex_) { return done_; })) return status_;
  return {StatusCode::timeout, "a chain of operations has not ended yet"};
}

void ChainedOperation::then(Continuation continuation) {
  {
    const MutexLock guard(mutex_);
    if (!done_) return continuations_.push_back(std::move(continuation));
  }
  call_back(continuation, status_);
}

void ChainedOperation::abandon() {
  {
    const MutexLock guard(mutex_);
    abandoned_ = true;
  }
  current()->abandon();
}

OperationInfo ChainedOperation::info() const {
  OperationInfo info = first_->info();
  const MutexLock guard(mutex_);
  info.duration = done_ ? ended_ - started_ : Duration::zero();
  return info;
}

Work Work::continue_with(std::function<Work()> next) && {
  auto first = operation_ != nullptr
                   ? std::move(operation_)
                   : std::make_shared<EndedOperation>(std::move(result_), info_, source_);
  auto chain = std::make_shared<ChainedOperation>(std::move(first));
  chain->start(std::move(next));
  return Work(std::move(chain));
}

}  // namespace stretto
