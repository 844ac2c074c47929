// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a step fails, and who is told.

#include <fmt/format.h>

#include "stretto/base/mutex.h"
#include "stretto/reducer/reducer.h"
#include "stretto/reducer/step_report.h"

namespace stretto {

// Adds to the failure of an operation what it means for training.
Status Reducer::explained(const Status& status) const {
  if (status.code() == StatusCode::mismatch) {
    return {StatusCode::mismatch,
            fmt::format("in step {} of model {}: {}. Perhaps a rank had no batch left. {}. Or all "
                        "parameters are frozen on one, or only some ranks have loaded a state: do "
                        "that on all, before the same forward pass. Or one backward pass goes "
                        "through several models, and not alike on all ranks: give each of them a "
                        "communicator of its own, by split()",
                        step_ + 1, options_.number, status.message(), reducer::kEquallyManySteps),
            status.rank()};
  }
  const bool left = status.code() == StatusCode::peer_lost && status.rank() &&
                    status.message().find("has destroyed its communicator") != std::string::npos &&
                    status.message().find("because an exception") == std::string::npos;
  if (!left) return status;
  return {StatusCode::peer_lost,
          fmt::format("{}: it left training after step {}, and this rank waits in step {}. {}",
                      status.message(), step_, step_ + 1, reducer::kEquallyManySteps),
          status.rank()};
}

// Of an exception's message: in those of libtorch, a stack trace follows.
std::string Reducer::first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

void Reducer::abandon_step(const std::string& reason) {
  if (failed_.load(std::memory_order_acquire)) return;
  const std::string why = reason.empty()
                              ? "what was thrown, only that rank itself can say: see its output"
                              : first_line(reason);
  const auto text = [&](const char* whose) {
    return fmt::format("an exception ended {} step when {} of {} gradients were ready; {}", whose,
                       ready_count_.load(), gradients_.size(), why);
  };
  communicator_.abort(text("its"));
  fail(Status(StatusCode::aborted, text("this rank's")));
}

// Aborts if perhaps only this rank knows of the failure, since all others wait for its next
// operation. They know of what is refused on all ranks (InvalidArgument), and of what the
// communicator has failed with; aborting for these would also end the groups that were made of the
// communicator.
void Reducer::tell_others(const Status& failure) {
  if (communicator_.has_failed() || failure.code() == StatusCode::invalid_argument) return;
  communicator_.abort(std::string(failure.message()));
}

void Reducer::give_up(const std::string& reason) {
  if (failed_.load(std::memory_order_acquire)) return;
  communicator_.abort(reason);
  fail(Status(StatusCode::aborted, reason));
}

void Reducer::fail(Status status) {
  const MutexLock lock(failure_mutex_);
  if (failure_.ok()) failure_ = std::move(status);
  failed_.store(true, std::memory_order_release);
}

void Reducer::throw_if_failed() const {
  if (!failed_.load(std::memory_order_acquire)) [[likely]]
    return;
  const MutexLock lock(failure_mutex_);
  failure_.or_throw();
}

}  // namespace stretto
