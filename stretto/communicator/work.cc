// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/work.h"

#include "stretto/base/error.h"

namespace stretto {

Work& Work::operator=(Work&& other) noexcept {
  if (this == &other) return *this;
  Work ended(std::move(*this));  // Waits or abandons, as a destroyed Work does.
  operation_ = std::move(other.operation_);
  exceptions_when_made_ = other.exceptions_when_made_;
  result_ = std::move(other.result_);
  source_ = other.source_;
  return *this;
}

void Work::let_go() {
  if (std::uncaught_exceptions() > exceptions_when_made_) operation_->abandon();
  // The communicator keeps the failure; there is nobody here to tell.
  (void)wait_status();
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
  operation_.reset();
}

Status Work::wait_status() {
  if (operation_ != nullptr) finish(operation_->wait(Deadline()));
  return result_;
}

std::optional<Status> Work::status() {
  if (!done()) return std::nullopt;
  return wait_status();
}

void Work::wait_for(Duration timeout) {
  if (timeout < Duration::zero()) {
    throw InvalidArgument(
        status_of(StatusCode::invalid_argument, "wait_for: {:g} s is negative", seconds(timeout)));
  }
  if (operation_ == nullptr) return result_.or_throw();
  if (!operation_->poll()) {
    const Status status = operation_->wait(Deadline::after(timeout));
    if (!operation_->poll()) return status.or_throw();
  }
  wait();
}

void Work::then(Continuation continuation) {
  if (operation_ == nullptr) return continuation(result_);
  operation_->then(std::move(continuation));
}

}  // namespace stretto
