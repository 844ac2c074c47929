// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/job/live_page.h"

namespace stretto::tools {

// What a rank has done between two looks at the notes of this host's ranks.
struct LiveRow {
  job::LiveNote note;
  Duration silent{};  // Time since the note was written.
  // Both are empty for a rank that the last look did not find, or that has not written since then.
  std::optional<double> waiting = {};  // Share of the time that the rank waited, from 0 to 1.
  std::optional<double> collectives_per_second = {};
  bool is_late = false;  // The other ranks wait for this one.

  // A silent rank is stopped or has no core: a running one writes its note each second.
  bool is_silent() const { return silent >= std::chrono::seconds(3); }
};

// The ranks of one job, by rank. With PyTorch, each process group is a job here.
using LiveRows = std::vector<LiveRow>;

// Returns the rows of each job in `notes`. `notes` are sorted by job and rank and were found at
// `now`; `before` are those that the last look found.
std::vector<LiveRows> live_jobs(const std::vector<job::LiveNote>& notes,
                                const std::vector<job::LiveNote>& before, TimePoint now);

}  // namespace stretto::tools
