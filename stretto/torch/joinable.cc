// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/joinable.h"

namespace stretto {

void Joinable::announce(std::uint64_t what) {
  if (loop_ != nullptr) loop_->announce(reducer::UnevenSteps::Phase::joined, number_, what);
}

}  // namespace stretto
