// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/job/live_page.h"

namespace stretto::tools {

// What a rank has done between two looks at the ranks of this host.
struct LiveRow {
  job::LiveNote note;
  Duration silent{};  // Since the note was written.
  // Nothing for a rank that was not there before, or has not written since.
  std::optional<double> waiting = {};  // From 0 to 1.
  std::optional<double> collectives_per_second = {};
  bool is_late = false;  // The others wait for it.

  // It is stopped, or has no core: others write each second.
  bool is_silent() const { return silent >= std::chrono::seconds(3); }
};

// The ranks of one job, or group of processes that has joined; by rank.
using LiveRows = std::vector<LiveRow>;

// Each job of `notes`, which are in the order of jobs and ranks, and were found at `now`; `before`:
// those of the last look.
std::vector<LiveRows> live_jobs(const std::vector<job::LiveNote>& notes,
                                const std::vector<job::LiveNote>& before, TimePoint now);

}  // namespace stretto::tools
