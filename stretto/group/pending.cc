// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/pending.h"

#include <algorithm>

#include <fmt/format.h>

#include "stretto/base/call_back.h"
#include "stretto/base/stream_guard.h"
#include "stretto/group/group.h"

namespace stretto::group {
namespace {

// How long before a deadline or a warning to ask, but not before half of the time has passed.
constexpr std::chrono::seconds kAskAhead(2);
// A failed operation ends in half of this time, whatever other ranks do.
constexpr std::chrono::seconds kHandBackTime(2);

TimePoint ask_before(TimePoint time, TimePoint since) {
  return time - std::min<Duration>(kAskAhead, (time - since) / 2);
}

}  // namespace

TimePoint time_to_ask(const Deadline& deadline) {
  return ask_before(deadline.time(), deadline.set_at());
}

void PendingOperation::begin(const OperationDescriptor& operation, std::uint32_t sequence,
                             Deadline deadline) {
  operation_ = operation;
  sequence_ = sequence;
  deadline_ = deadline;
  running_since_ = warn_at_ = TimePoint::max();
  asked_at_ = TimePoint::min();
  continuations_.clear();
  status_ = Status();
  done_.store(false, std::memory_order_relaxed);
}

bool PendingOperation::asks_at(TimePoint now, Duration ask_after) {
  if (done()) return false;
  const bool runs = running_since_ != TimePoint::max();
  const auto is_due = [&](TimePoint time) { return time <= now && time > asked_at_; };
  const bool asks = (runs && ask_after > Duration::zero() && is_due(running_since_ + ask_after)) ||
                    (runs && is_due(ask_before(warn_at_, running_since_))) ||
                    is_due(time_to_ask(deadline_));
  if (asks) asked_at_ = now;
  return asks;
}

void PendingOperation::runs_since(TimePoint now, Duration warn_after) {
  if (running_since_ != TimePoint::max()) return;
  running_since_ = now;
  if (warn_after > Duration::zero()) warn_at_ = Deadline::after(warn_after).time();
}

bool PendingOperation::warns_at(TimePoint now) {
  if (done() || now < warn_at_) return false;
  warn_at_ = now + (now - running_since_);
  return true;
}

void PendingOperation::finish(Status status) {
  if (done()) return;
  status_ = std::move(status);
  duration_ = Clock::now() - deadline_.set_at();
  if (continuations_.size() > 1) {
    // One thread calls all of them in order, although several may make progress.
    const auto all = std::make_shared<std::vector<Continuation>>();
    Continuation call_all = [all](const Status& how) {
      for (const Continuation& each : *all) call_back(each, how);
    };
    all->reserve(1);  // If this throws, no continuation is lost; the rest needs no memory.
    all->swap(continuations_);
    continuations_.push_back(std::move(call_all));
  }
  if (!continuations_.empty()) {
    engine_->call_later(std::move(continuations_.front()), Status(status_));
  }
  continuations_.clear();
  engine_->ended();
  // Release: a thread that sees the end also sees the status and the output.
  done_.store(true, std::memory_order_release);
}

bool PendingOperation::poll() {
  if (!done() && engine_->is_owner_process()) engine_->turn();
  return done();
}

Status PendingOperation::wait(Deadline deadline) {
  if (!done()) STRETTO_RETURN_IF_ERROR(engine_->check_not_forked());
  if (done() || engine_->drive([this] { return done(); }, deadline)) return status_;
  return status_of(StatusCode::timeout, "{} has not ended yet", describe(operation_));
}

Status PendingOperation::wait_on_device() {
  if (!done()) STRETTO_RETURN_IF_ERROR(engine_->check_not_forked());
  std::shared_ptr<DeviceEnd> end;
  const auto is_begun = [&]() STRETTO_REQUIRES(engine_held) {
    if (done()) return true;
    Group* const group = engine_->find(group_);
    if (group != nullptr) end = group->end_on_device(*this);
    return end != nullptr;
  };
  if (!done()) (void)engine_->drive(is_begun, Deadline());
  if (end == nullptr) return wait(Deadline());
  // If the device refuses, the host waits instead of the stream.
  if (!end->let_wait(StreamGuard::current()).ok()) return wait(Deadline());
  return done() ? status_ : Status();
}

void PendingOperation::then(Continuation continuation) {
  {
    const EngineLock held(*engine_);
    if (!done()) return continuations_.push_back(std::move(continuation));
  }
  call_back(continuation, status_);
}

void PendingOperation::abandon() {
  if (poll() || !engine_->is_owner_process()) return;
  {
    EngineLock held(*engine_);
    if (Group* const group = engine_->find(group_)) group->unwind(this);
    engine_->run_continuations(held);
  }
  // The caller may free the buffers afterwards, but another rank may just be copying from or to
  // them.
  (void)engine_->drive([this] { return done(); }, Deadline::after(kHandBackTime));
}

}  // namespace stretto::group
