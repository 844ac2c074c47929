// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/schedule.h"

#include <algorithm>

namespace stretto::schedule {

std::size_t Schedule::sync_count() const {
  const auto is_sync = [](const Step& step) { return step.kind == StepKind::sync; };
  return static_cast<std::size_t>(std::ranges::count_if(steps, is_sync));
}

bool Schedule::is_in_team(Rank other) const { return std::ranges::binary_search(team, other); }

bool input_holds(const Schedule& schedule, Rank rank, ChunkIndex chunk) {
  switch (schedule.collective) {
    case Collective::all_gather:
    case Collective::gather:
      return chunk.value() == rank.value();
    case Collective::broadcast:
    case Collective::scatter:
      return rank == schedule.root;
    case Collective::all_to_all:
      return chunk.value() / schedule.rank_count == rank.value();
    default:
      return true;
  }
}

bool output_holds(const Schedule& schedule, Rank rank, ChunkIndex chunk) {
  switch (schedule.collective) {
    case Collective::reduce_scatter:
    case Collective::scatter:
      return chunk.value() == rank.value();
    case Collective::reduce:
    case Collective::gather:
      return rank == schedule.root;
    case Collective::all_to_all:
      return chunk.value() % schedule.rank_count == rank.value();
    default:
      return true;
  }
}

std::optional<std::int32_t> required_chunks(Collective collective, std::int32_t rank_count) {
  switch (collective) {
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::gather:
    case Collective::scatter:
      return rank_count;
    case Collective::all_to_all:
      return rank_count * rank_count;
    case Collective::barrier:
      return 0;
    default:
      return std::nullopt;
  }
}

}  // namespace stretto::schedule
