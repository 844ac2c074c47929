// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <vector>

#include "stretto/base/status.h"
#include "tools/launch/child.h"
#include "tools/launch/outcome.h"

namespace stretto::launch {

// The ranks of this host as processes: who runs, who has ended and how. A process that has ended is
// kept (as a zombie) until reap_all(), so that its process group can be signalled without any risk
// that its number meanwhile means something else.
class RankProcesses {
 public:
  RankProcesses() = default;
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses() { kill_and_reap_all(); }

  void add(int rank, pid_t pid);
  // Looks who has ended since, and asks `board` what they had been doing. True if a rank has
  // failed.
  bool notice_ended(const bootstrap::StatusBoardReader& board);
  bool all_ended() const;
  // To every process group, as what a rank has started must hear of it, too, even if the rank
  // itself has ended.
  void signal_all(int signal);
  // A signal that somebody sent to the launcher.
  void pass_on(int signal);
  // A signal by which the launcher ends the job.
  void tell_to_end(int signal);
  // Leaves no process behind.
  void kill_and_reap_all();

  std::vector<RankOutcome> outcomes() const;

 private:
  struct Process {
    RankOutcome outcome;
    bool running = true;
  };

  std::vector<Process> processes_;
  std::vector<int> passed_on_;
  bool reaped_ = false;
};

}  // namespace stretto::launch
