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

// How a rank ended, or what is known of one whose end nobody has seen.
struct RankOutcome {
  int rank = 0;
  // Where it ran, if the job has several hosts.
  std::string host = {};
  // As in LaunchOptions: what it is, if it is no rank but starts all of them.
  std::string starter = {};
  pid_t pid = -1;
  int exit_code = 0;  // If no signal killed it.
  int signal = 0;     // Which signal killed it; 0: none.
  TimePoint started = {};
  TimePoint ended = {};  // Unset where nobody has seen it.
  // The launcher had already told it to end: another rank had failed, time was up, or the launcher
  // itself had been told to end.
  bool told_to_end = false;
  // What the launcher had sent it by then.
  std::vector<int> signals_sent = {};
  // What it last said it was doing.
  std::optional<job::StatusNote> last_note = std::nullopt;
  // How its host was lost, and the rank with it; empty: it was not.
  std::string lost = {};
  // How often the rank had been started again by then.
  int restarts = 0;

  void note_end(const RankEvent& event);

  bool has_ended() const { return ended != TimePoint(); }
  bool failed() const { return signal != 0 || exit_code != 0; }
  // As a shell reports it: the exit code, or 128 + the signal.
  int exit_status() const { return signal != 0 ? 128 + signal : exit_code; }
};

// The exit status where the time limit was reached: what timeout(1) returns.
inline constexpr int kTimeLimitStatus = 124;

struct JobOutcome {
  std::vector<RankOutcome> ranks = {};  // By rank.
  // By how much the count of this control group's out-of-memory kills has grown.
  long out_of_memory_kills = 0;
  Duration time_limit = Duration::zero();
  bool time_limit_reached = false;
  // The signal by which somebody ended the job through the launcher; 0: nobody did.
  int ended_by = 0;
  // That of a launcher which ends before it has seen all ranks end; 0: it has seen them.
  int launcher_status = 0;

  // The rank whose failure explains the others': the first to end in failure; but a rank that was
  // killed or crashed within a tenth of a second after it goes before one that merely ended with an
  // error code, because death is noticed by the others faster than by us. Null if no rank failed.
  const RankOutcome* first_failure() const;
  // Of the whole job: 0, or the first failure's; 124 if the time limit was reached; the launcher's
  // own before all of these.
  int exit_status() const;
};

// "SIGKILL (killed from outside, possibly by the out-of-memory killer)", "SIGTERM (sent by this
// launcher)", "exit code 3".
std::string describe_end(const RankOutcome& outcome);

// What the ranks that are left say of it: "killed by SIGKILL, likely out of memory; its last
// operation was ...". `out_of_memory_kills`: by how much their count has grown where it ran;
// nothing: that is not known.
std::string obituary_of(const RankOutcome& outcome, std::optional<long> out_of_memory_kills);

// "rank 2 failed: SIGKILL (...); its last operation was ...; it is started again (restart 1 of 3)".
std::string restart_notice(const RankOutcome& outcome, int restart, int restarts);

// Sentences for people, each a line: who failed first, how, and what it was doing; then the others.
// Empty if all went well.
std::string report(const JobOutcome& outcome);

// One line of JSON, for programs. null: what is not known.
std::string report_json(const JobOutcome& outcome);

// How many processes of this process's control group the system's out-of-memory killer has killed;
// nothing where that cannot be read.
std::optional<long> out_of_memory_kills();

}  // namespace stretto::launch
