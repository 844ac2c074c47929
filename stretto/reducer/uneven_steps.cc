// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/uneven_steps.h"

#include <string>

#include <fmt/format.h>

#include "stretto/base/rank_vector.h"
#include "stretto/communicator/all_gather_value.h"
#include "stretto/reducer/agreement.h"

namespace stretto::reducer {

std::string UnevenSteps::describe(const Announcement& announced) const {
  if (announced.phase == Phase::joinable) {
    return fmt::format("operation {} of joinable {}", announced.what, announced.number);
  }
  const bool is_forward = announced.phase == Phase::buffers;
  return fmt::format("a {} pass of model {}", is_forward ? "forward" : "backward",
                     announced.number);
}

UnevenSteps::Announcement UnevenSteps::exchange(const Announcement& own) {
  RankVector<Announcement> all;
  try {
    all = communicator::all_gather_value(communicator_, own, timeout_);
  } catch (const Mismatch& mismatch) {
    if (own.phase != Phase::finished) throw;
    mismatch.status()
        .with_context(
            "a rank without data waits inside join() for steps of the others, where only the "
            "models that are joined may communicate, and what UnevenInputsOptions::joinables "
            "names, such as ShardedOptimizer and ParameterAveraging: no other model, and no "
            "operations of the loop's own")
        .or_throw();
  }
  Rank first = -1;  // The lowest rank with data.
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].phase == Phase::finished) continue;
    if (first < 0) first = static_cast<std::int32_t>(rank);
    const Announcement& expected = all[first];
    if (all[rank] == expected) continue;
    throw Mismatch(status_of(
        StatusCode::mismatch,
        "ranks {} and {} both have data, but one is about to run {} and the other one {}: "
        "inside join() all ranks with data must do the same",
        communicator_.job_rank(first).value(), job_rank(communicator_, rank), describe(expected),
        describe(all[rank])));
  }
  if (first < 0) return {};
  leader_ = first;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    has_data_[rank] = all[rank].phase != Phase::finished;
  }
  return all[first];
}

}  // namespace stretto::reducer
