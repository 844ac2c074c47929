// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <vector>

#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

// A name for the bytes of a slot on a rank. Input c and output c have two names, because an
// operation may be out of place; a write to output c touches both, because it may be in place.
using Location = std::uint64_t;

Location location_of(Rank rank, const Slot& slot);

// That a step reads or writes a location, or reads it and takes its lines (Step::takes).
struct Touch {
  Location location = 0;
  bool writes = false;
  bool takes = false;
};

// Appends what a step touches, reads first.
void append_touches(const Schedule& schedule, const Step& step, std::vector<Touch>& touches);

// Sorted and unique; number_of() counts the locations before one. They must not be more than 2^31.
class LocationNumbers {
 public:
  explicit LocationNumbers(std::vector<Location> locations);
  std::size_t size() const { return locations_.size(); }
  std::size_t number_of(Location location) const;

 private:
  std::vector<Location> locations_;
};

}  // namespace stretto::schedule
