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

// Collects the statistics of steps for Perfetto (ui.perfetto.dev) or chrome://tracing: a track for
// forward, one for backward, and as many for buckets as were in flight at once. Each rank has its
// own timeline.
class Timeline {
 public:
  explicit Timeline(Rank rank) : rank_(rank) {}

  // Adds a step. Ignored when there are a hundred thousand steps or buckets already.
  void add(const StepStatistics& statistics);

  // JSON in the trace-event format, in the time of this host's clock.
  std::string json() const;
  // Throws SystemError if the file cannot be written.
  void write(const std::string& path) const;
  // Writes the events of all ranks to one file, on rank 0, in the time of its clock; measures the
  // offsets of the other clocks now (communicator/clock_offset.h). A bucket is reduced only when
  // the last rank has launched it: the event of that rank has "waited_for_ms", the time by which
  // the rank delayed the bucket, and the label of the rank has the sum. Collective, blocks. Throws
  // InvalidArgument if ranks have different numbers of buckets, what operations throw, and on rank
  // 0 what write() throws.
  void write_merged(Communicator& comm, const std::string& path) const;

 private:
  struct Event {
    std::string name;
    int track = 0;
    double begin_us = 0;
    double duration_us = 0;
    double waited_for_ms = 0;  // Of a bucket, on the rank that launched it last.
  };
  void add_event(std::string name, int track, double begin_us, double duration_us);
  std::string events_json(std::string_view label) const;
  double find_waits(Communicator& comm);

  Rank rank_;
  std::size_t bucket_tracks_ = 1;
  std::size_t steps_ = 0;  // In events_, like the buckets.
  std::size_t buckets_ = 0;
  std::vector<Event> events_;
};

}  // namespace stretto
