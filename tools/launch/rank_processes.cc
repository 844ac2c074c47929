// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/rank_processes.h"

#include <algorithm>
#include <utility>

namespace stretto::launch {

void RankProcesses::add(RankOutcome rank) {
  rank.started = Clock::now();
  processes_.push_back({.outcome = std::move(rank)});
}

void RankProcesses::note_start(int rank, pid_t pid) {
  Process& process = at(rank);
  process.stage = Stage::running;
  process.outcome.pid = pid;
  process.outcome.started = Clock::now();
}

const RankOutcome& RankProcesses::note_end(int rank, const RankEvent& event) {
  Process& process = at(rank);
  process.stage = Stage::ended;
  process.outcome.note_end(event);
  return process.outcome;
}

void RankProcesses::note_signal(int signal, bool told_to_end) {
  for (auto& [outcome, stage] : processes_) {
    if (stage == Stage::ended) continue;
    outcome.signals_sent.push_back(signal);
    outcome.told_to_end |= told_to_end;
  }
}

bool RankProcesses::all_started() const {
  return std::none_of(processes_.begin(), processes_.end(),
                      [](const Process& process) { return process.stage == Stage::awaited; });
}

bool RankProcesses::all_ended() const {
  return std::all_of(processes_.begin(), processes_.end(),
                     [](const Process& process) { return process.stage == Stage::ended; });
}

std::vector<RankOutcome> RankProcesses::outcomes() const {
  std::vector<RankOutcome> outcomes;
  for (const Process& process : processes_) outcomes.push_back(process.outcome);
  return outcomes;
}

}  // namespace stretto::launch
