// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/joinable.h"

#include <fmt/format.h>

#include "stretto/torch/replica.h"

namespace stretto {

// When its loop has ended, join() finds the null pointer, and aborts the communicator.
Joinable::~Joinable() {
  if (loop_ != nullptr) loop_->joinables[number_] = nullptr;
}

void Joinable::announce(std::uint64_t what) {
  if (loop_ != nullptr) loop_->announce(reducer::UnevenSteps::Phase::joinable, number_, what);
}

const reducer::UnevenSteps* Joinable::loop() const { return loop_; }

std::string Joinable::describe(std::uint64_t what) const {
  return fmt::format("operation {} of a Joinable of the program's own", what);
}

namespace ddp {

std::string JoinedLoop::describe(const Announcement& announced) const {
  const bool is_known = announced.phase == Phase::joinable && announced.number < joinables.size();
  const Joinable* const joinable = is_known ? joinables[announced.number] : nullptr;
  if (joinable == nullptr) return UnevenSteps::describe(announced);
  return fmt::format("{} (joinable {})", joinable->describe(announced.what), announced.number);
}

}  // namespace ddp

}  // namespace stretto
