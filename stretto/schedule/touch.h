// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <vector>

#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// Identifies the bytes of a slot on a rank. Input c and output c have different locations, because
// an operation may be out of place. A write to output c touches both of them, because the operation
// may be in place.
using Location = std::uint64_t;

Location location_of(Rank rank, const Slot& slot);

// An access of a step to a location. `takes`: the step reads the location and takes its cache lines
// (Step::takes).
struct Touch {
  Location location = 0;
  bool writes = false;
  bool takes = false;
};

// Appends the accesses of a step, reads first.
void append_touches(const Schedule& schedule, const Step& step, std::vector<Touch>& touches);

// Numbers distinct locations in ascending order, from 0; number_of() returns the number of one.
// There must be at most 2^31 of them.
class LocationNumbers {
 public:
  explicit LocationNumbers(std::vector<Location> locations);
  std::size_t size() const { return locations_.size(); }
  std::size_t number_of(Location location) const;

 private:
  std::vector<Location> locations_;
};

}  // namespace stretto::schedule
