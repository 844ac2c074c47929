// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/id.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/step_statistics.h"

namespace stretto {

// Collects what steps cost, to be looked at in Perfetto (ui.perfetto.dev) or chrome://tracing: a
// track for forward, one for backward, and as many for buckets as were under way at once. One per
// rank.
class Timeline {
 public:
  explicit Timeline(Rank rank) : rank_(rank) {}

  // The step that `statistics` are about. Ignores those behind a hundred thousand steps or buckets.
  void add(const StepStatistics& statistics);

  // Trace-event JSON, by this host's clock.
  std::string json() const;
  // Throws SystemError if the file cannot be written.
  void write(const std::string& path) const;
  // The events of all ranks in one file, which rank 0 writes, by its clock: offsets of the others
  // are measured now (communicator/clock_offset.h). A bucket is reduced when the last rank has
  // launched it: there the event of that rank has "waited_for_ms", how much sooner it would have
  // been without it, and ranks are labelled with the sum. Collective, blocks; on all ranks with as
  // many buckets, else InvalidArgument. Throws what operations throw, and on rank 0 as write().
  void write_merged(Communicator& comm, const std::string& path) const;

 private:
  struct Event {
    std::string name;
    int track = 0;
    double begin_us = 0;
    double duration_us = 0;
    double waited_for_ms = 0;  // Of a bucket, on the last rank that has launched it.
  };
  void add_event(std::string name, int track, double begin_us, double duration_us);
  std::string events_json(std::string_view label) const;
  double find_waits(Communicator& comm);

  Rank rank_;
  std::size_t bucket_tracks_ = 1;
  std::size_t steps_ = 0;  // In events_, as are the buckets.
  std::size_t buckets_ = 0;
  std::vector<Event> events_;
};

}  // namespace stretto
