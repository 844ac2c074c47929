// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "tools/launch/host.h"

namespace stretto::launch {

// How a rank ended, or what is known of a rank whose end nobody has seen.
struct RankOutcome {
  int rank = 0;
  // The host that it ran on, if the job has several.
  std::string host = {};
  // See LaunchOptions::starter.
  std::string starter = {};
  pid_t pid = -1;
  int exit_code = 0;  // If no signal killed it.
  int signal = 0;     // Which signal killed it; 0: none.
  TimePoint started = {};
  TimePoint ended = {};  // Unset if nobody has seen it.
  // The launcher had already told it to end: another rank had failed, time was up, or the launcher
  // itself had been told to end.
  bool told_to_end = false;
  // The signals that the launcher had sent it by then.
  std::vector<int> signals_sent = {};
  // The operation that it last reported.
  std::optional<job::StatusNote> last_note = std::nullopt;
  // Not empty if the rank was lost with its host: how that happened.
  std::string lost = {};
  // How often the rank had been started again by then.
  int restarts = 0;

  void note_end(const RankEvent& event);

  bool has_ended() const { return ended != TimePoint(); }
  bool failed() const { return signal != 0 || exit_code != 0; }
  // As a shell reports it: the exit code, or 128 + the signal.
  int exit_status() const { return signal != 0 ? 128 + signal : exit_code; }
};

// The exit status when the time limit was reached: that of timeout(1).
inline constexpr int kTimeLimitStatus = 124;

struct JobOutcome {
  std::vector<RankOutcome> ranks = {};  // By rank.
  // How many more out-of-memory kills this process's control group counts than before the job.
  long out_of_memory_kills = 0;
  Duration time_limit = Duration::zero();
  bool time_limit_reached = false;
  // The signal by which somebody ended the job through the launcher; 0: nobody did.
  int ended_by = 0;
  // Not 0: the exit status of a launcher that ended before it had seen all ranks end. 0: the fields
  // above decide the exit status.
  int launcher_status = 0;

  // The rank whose failure explains those of the others: the first that ended in failure. But a
  // rank that was killed or crashed up to a tenth of a second later, without having been told to
  // end, takes precedence over one that ended with an error code, because the other ranks notice a
  // death sooner than the launcher. Null if no rank failed.
  const RankOutcome* first_failure() const;
  // The exit status of the job: the launcher's own if it is not 0, else 124 if the time limit was
  // reached, else that of first_failure(), else 0.
  int exit_status() const;
};

// "SIGKILL" for 9.
std::string signal_name(int number);
// Returns text such as "SIGKILL (killed from outside, possibly by the out-of-memory killer)",
// "SIGTERM (sent by this launcher)" or "exit code 3".
std::string describe_end(const RankOutcome& outcome);

// Returns what the remaining ranks say about the end: "killed by SIGKILL, likely out of memory; its
// last operation was ...". `out_of_memory_kills`: how many such kills its control group has counted
// that no earlier end explains; empty: not known.
std::string obituary_of(const RankOutcome& outcome, std::optional<long> out_of_memory_kills);

// Returns text such as "rank 2 failed: SIGKILL (...); its last operation was ...; it is started
// again (restart 1 of 3)".
std::string restart_notice(const RankOutcome& outcome, int restart, int restarts);

// Returns sentences for people, one per line: which rank failed first, how, and what it was doing;
// then the others. Empty if all went well.
std::string report(const JobOutcome& outcome);

// Returns one line of JSON for programs; null stands for what is not known.
std::string report_json(const JobOutcome& outcome);

// How many processes of this process's control group the out-of-memory killer has killed; empty if
// that cannot be read.
std::optional<long> out_of_memory_kills();

}  // namespace stretto::launch
