// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <vector>

#include "tools/launch/outcome.h"

namespace stretto::launch {

// The ranks that a launcher looks after: who runs, who has ended and how.
class RankProcesses {
 public:
  // Who it is, and where. In the order of their numbers, which follow each other.
  void add(RankOutcome rank);
  void note_start(int rank, pid_t pid);
  const RankOutcome& note_end(int rank, const RankEvent& event);
  // What the launcher sends to all of them. `told_to_end`: it ends the job by that.
  void note_signal(int signal, bool told_to_end);
  bool all_started() const;
  bool all_ended() const;
  std::vector<RankOutcome> outcomes() const;

 private:
  enum class Stage { awaited, running, ended };
  struct Process {
    RankOutcome outcome;
    Stage stage = Stage::awaited;
  };

  Process& at(int rank) {
    return processes_[static_cast<std::size_t>(rank - processes_.front().outcome.rank)];
  }

  std::vector<Process> processes_;
};

}  // namespace stretto::launch
