// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <vector>

#include "tools/launch/guardian.h"
#include "tools/launch/outcome.h"

namespace stretto::launch {

// The ranks of this host as processes: who runs, who has ended and how. The guardian keeps a
// process that has ended as a zombie, so that its process group can be signalled without any risk
// that its number meanwhile means something else.
class RankProcesses {
 public:
  // In the order of the local ranks.
  void add(int rank, pid_t pid);
  // Notes how a rank has ended, and asks `board` what it had been doing.
  const RankOutcome& note_end(const RankNews& news, const job::StatusBoardReader& board);
  std::size_t count() const { return processes_.size(); }
  bool all_ended() const;
  // To every process group, as what a rank has started must hear of it, too, even if the rank
  // itself has ended.
  void send(int signal);
  // The same, with a signal by which the launcher ends the job.
  void tell_to_end(int signal);

  std::vector<RankOutcome> outcomes() const;

 private:
  struct Process {
    RankOutcome outcome;
    bool running = true;
  };

  std::vector<Process> processes_;
};

}  // namespace stretto::launch
