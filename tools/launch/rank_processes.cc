// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/rank_processes.h"

#include <signal.h>

#include <algorithm>

namespace stretto::launch {

void RankProcesses::add(int rank, pid_t pid) {
  processes_.push_back({.outcome = {.rank = rank, .pid = pid, .started = Clock::now()}});
}

const RankOutcome& RankProcesses::note_end(const RankNews& news,
                                           const job::StatusBoardReader& board) {
  const auto index = static_cast<std::size_t>(news.local_rank);
  auto& [outcome, running] = processes_[index];
  running = false;
  outcome.ended = Clock::now();
  (news.kind == RankNews::Kind::killed ? outcome.signal : outcome.exit_code) = news.number;
  outcome.last_note = board.read(index);
  return outcome;
}

bool RankProcesses::all_ended() const {
  return std::none_of(processes_.begin(), processes_.end(),
                      [](const Process& process) { return process.running; });
}

void RankProcesses::send(int signal) {
  for (auto& [outcome, running] : processes_) {
    if (running) outcome.signals_sent.push_back(signal);
    ::kill(-outcome.pid, signal);
  }
}

void RankProcesses::tell_to_end(int signal) {
  for (auto& [outcome, running] : processes_) outcome.told_to_end |= running;
  send(signal);
}

std::vector<RankOutcome> RankProcesses::outcomes() const {
  std::vector<RankOutcome> outcomes;
  for (const Process& process : processes_) outcomes.push_back(process.outcome);
  return outcomes;
}

}  // namespace stretto::launch
