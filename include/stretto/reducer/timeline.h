// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stretto/base/id.h"
#include "stretto/reducer/reducer.h"

namespace stretto {

// Collects what steps cost, to be looked at in Perfetto (ui.perfetto.dev) or chrome://tracing: a
// track for forward, one for backward, and as many for buckets as were under way at once. One per
// rank; files of several ranks of one host may be opened together, as they go by the same clock.
class Timeline {
 public:
  explicit Timeline(Rank rank) : rank_(rank) {}

  // The step that `statistics` are about. Remembers the first hundred thousand events.
  void add(const StepStatistics& statistics, const reducer::BucketPlan& plan);

  // Trace-event JSON.
  std::string json() const;
  // Throws SystemError if the file cannot be written.
  void write(const std::string& path) const;

 private:
  struct Event {
    std::string name;
    int track = 0;
    double begin_us = 0;
    double duration_us = 0;
  };
  void add_event(std::string name, int track, double begin_us, double duration_us);

  Rank rank_;
  std::size_t bucket_tracks_ = 1;
  std::vector<Event> events_;
};

}  // namespace stretto
