// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/touch.h"

#include <algorithm>
#include <utility>

namespace stretto::schedule {

Location location_of(Rank rank, const Slot& slot) {
  return (static_cast<Location>(static_cast<std::uint32_t>(rank.value())) << 34) |
         (static_cast<Location>(slot.buffer) << 32) | static_cast<std::uint32_t>(slot.index);
}

void append_touches(const Schedule& schedule, const Step& step, std::vector<Touch>& touches) {
  const auto sources = schedule.sources(step);
  for (const Place& source : sources) {
    const bool takes = step.takes && source.slot.buffer == Buffer::raw;
    touches.push_back({location_of(source.rank, source.slot), false, takes});
  }
  for (const Place& target : schedule.targets(step)) {
    touches.push_back({location_of(target.rank, target.slot), true});
    if (target.slot.buffer != Buffer::output) continue;
    const Place alias{target.rank, {Buffer::input, target.slot.index, target.slot.chunk}};
    // In place, a copy of a slot onto itself does nothing, so readers of the input need not wait.
    const bool onto_itself = step.kind == StepKind::copy && sources.front() == alias;
    if (!onto_itself) touches.push_back({location_of(alias.rank, alias.slot), true});
  }
}

LocationNumbers::LocationNumbers(std::vector<Location> locations)
    : locations_(std::move(locations)) {
  std::ranges::sort(locations_);
  locations_.erase(std::unique(locations_.begin(), locations_.end()), locations_.end());
}

std::size_t LocationNumbers::number_of(Location location) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(locations_, location) -
                                  locations_.begin());
}

}  // namespace stretto::schedule
