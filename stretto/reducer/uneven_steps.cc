// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/uneven_steps.h"

#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/communicator/all_gather_value.h"

namespace stretto::reducer {
namespace {

const char* name_of(UnevenSteps::Phase phase) {
  return phase == UnevenSteps::Phase::buffers ? "forward" : "backward";
}

}  // namespace

UnevenSteps::Announcement UnevenSteps::exchange(const Announcement& own) {
  RankVector<Announcement> all;
  try {
    all = communicator::all_gather_value(communicator_, own, timeout_);
  } catch (const Mismatch& mismatch) {
    if (own.phase != Phase::finished) throw;
    mismatch.status()
        .with_context(
            "a rank without data waits inside join() for steps of the others, where only the "
            "models that are joined may communicate: no other model, and neither ShardedOptimizer, "
            "ParameterAveraging nor operations of the loop's own")
        .or_throw();
  }
  Rank first = -1;
  int with_data = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].phase == Phase::finished) continue;
    if (with_data++ == 0) first = static_cast<std::int32_t>(rank);
    const Announcement& expected = all[first];
    if (all[rank] == expected) continue;
    throw Mismatch(status_of(
        StatusCode::mismatch,
        "ranks {} and {} both have data, but one is about to run a {} pass of model {} and the "
        "other one a {} pass of model {}: inside join() all ranks with data must do the same",
        first.value(), rank, name_of(expected.phase), expected.model, name_of(all[rank].phase),
        all[rank].model));
  }
  if (with_data == 0) return {};
  leader_ = first;
  ranks_with_data_ = with_data;
  return all[first];
}

}  // namespace stretto::reducer
