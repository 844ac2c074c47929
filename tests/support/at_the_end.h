// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <utility>

#include "stretto/torch/joinable.h"

namespace stretto::testing {

// Looks at what a rank has when the loop of join() has ended, before all get what the last one has.
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
