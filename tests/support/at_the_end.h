// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <utility>

#include "stretto/torch/joinable.h"

namespace stretto::testing {

// Calls `look` on each rank when the loop of join() has ended, before the last rank hands its state
// to all.
class AtTheEnd : public Joinable {
 public:
  AtTheEnd(Communicator& communicator, std::function<void()> look)
      : Joinable(communicator), look_(std::move(look)) {}

 private:
  void follow(std::uint64_t /*what*/) override {}
  void finish(Rank /*last*/) override { look_(); }

  std::function<void()> look_;
};

}  // namespace stretto::testing
