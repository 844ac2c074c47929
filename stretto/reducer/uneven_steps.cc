// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/uneven_steps.h"

#include <vector>

#include "stretto/communicator/all_gather_value.h"

namespace stretto::reducer {

UnevenSteps::Phase UnevenSteps::exchange(Phase own) {
  const std::vector<Phase> all = communicator::all_gather_value(communicator_, own, timeout_);
  Rank first = -1;
  int with_data = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == Phase::finished) continue;
    if (with_data++ == 0) first = static_cast<std::int32_t>(rank);
    const Phase expected = all[static_cast<std::size_t>(first.value())];
    if (all[rank] == expected) continue;
    throw Mismatch(status_of(
        StatusCode::mismatch,
        "ranks {} and {} both have data, but one is about to run a forward pass and the other one "
        "a backward pass: inside join() all ranks with data must do the same",
        first.value(), rank));
  }
  if (with_data == 0) return Phase::finished;
  leader_ = first;
  ranks_with_data_ = with_data;
  return all[static_cast<std::size_t>(first.value())];
}

}  // namespace stretto::reducer
