// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/rank_processes.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>

namespace stretto::launch {

void RankProcesses::add(int rank, pid_t pid) {
  processes_.push_back({.outcome = {.rank = rank, .pid = pid, .started = Clock::now()}});
}

bool RankProcesses::notice_ended(const bootstrap::StatusBoardReader& board) {
  bool failure = false;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    auto& [outcome, running] = processes_[i];
    if (!running) continue;
    siginfo_t info{};
    const int waited =
        ::waitid(P_PID, static_cast<id_t>(outcome.pid), &info, WEXITED | WNOHANG | WNOWAIT);
    if (waited != 0 || info.si_pid == 0) continue;
    running = false;
    outcome.ended = Clock::now();
    if (info.si_code == CLD_EXITED) {
      outcome.exit_code = info.si_status;
    } else {
      outcome.signal = info.si_status;
      outcome.by_passed_on_signal =
          std::find(passed_on_.begin(), passed_on_.end(), outcome.signal) != passed_on_.end();
    }
    outcome.last_note = board.read(i);
    failure = failure || outcome.failed();
  }
  return failure;
}

bool RankProcesses::all_ended() const {
  return std::none_of(processes_.begin(), processes_.end(),
                      [](const Process& process) { return process.running; });
}

void RankProcesses::signal_all(int signal) {
  for (const Process& process : processes_) ::kill(-process.outcome.pid, signal);
}

void RankProcesses::pass_on(int signal) {
  passed_on_.push_back(signal);
  signal_all(signal);
}

void RankProcesses::tell_to_end(int signal) {
  for (auto& [outcome, running] : processes_) {
    if (running) outcome.told_to_end = true;
  }
  signal_all(signal);
}

void RankProcesses::kill_and_reap_all() {
  if (reaped_) return;
  reaped_ = true;
  signal_all(SIGKILL);
  for (const Process& process : processes_) {
    while (::waitpid(process.outcome.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

std::vector<RankOutcome> RankProcesses::outcomes() const {
  std::vector<RankOutcome> outcomes;
  for (const Process& process : processes_) outcomes.push_back(process.outcome);
  return outcomes;
}

}  // namespace stretto::launch
