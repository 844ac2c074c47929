// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/live_rows.h"

#include <algorithm>
#include <cstdint>

namespace stretto::tools {
namespace {

using job::LiveNote;

// A share of a rank's time; smaller differences are chance.
constexpr double kLateBy = 0.1;

// Returns the note of the same rank; null if there is none.
const LiveNote* find_same_rank(const std::vector<LiveNote>& notes, const LiveNote& wanted) {
  const auto found = std::ranges::find_if(notes, [&](const LiveNote& note) {
    return note.who.job == wanted.who.job && note.who.size == wanted.who.size &&
           note.who.rank == wanted.who.rank && note.pid == wanted.pid;
  });
  return found == notes.end() ? nullptr : &*found;
}

bool has_lost_a_group(int pid, const std::vector<LiveNote>& notes,
                      const std::vector<LiveNote>& before) {
  return std::ranges::any_of(before, [&](const LiveNote& note) {
    return note.pid == pid && find_same_rank(notes, note) == nullptr;
  });
}

// How long a process has waited since `before`, in all its groups together: with PyTorch, each
// group is a job of its own here.
Duration waited_by(int pid, const std::vector<LiveNote>& notes,
                   const std::vector<LiveNote>& before) {
  Duration sum{};
  for (const LiveNote& note : notes) {
    if (note.pid != pid) continue;
    const LiveNote* const earlier = find_same_rank(before, note);
    sum += note.state.waited - (earlier == nullptr ? Duration::zero() : earlier->state.waited);
  }
  return sum;
}

LiveRow row_of(const LiveNote& note, const std::vector<LiveNote>& notes,
               const std::vector<LiveNote>& before, TimePoint now) {
  LiveRow row{.note = note, .silent = note.written < now ? now - note.written : Duration::zero()};
  const LiveNote* const earlier = find_same_rank(before, note);
  if (earlier == nullptr || note.written <= earlier->written) return row;
  const double passed = seconds(note.written - earlier->written);
  // If a group of the process has ended meanwhile, its part of the wait is unknown.
  if (!has_lost_a_group(note.pid, notes, before)) {
    row.waiting = std::clamp(seconds(waited_by(note.pid, notes, before)) / passed, 0.0, 1.0);
  }
  const std::uint64_t begun =
      std::max(note.state.collectives, earlier->state.collectives) - earlier->state.collectives;
  row.collectives_per_second = static_cast<double>(begun) / passed;
  return row;
}

// Marks ranks that wait far less than most, and ranks that are silent while others are not.
void mark_late(LiveRows& rows) {
  std::vector<double> waiting;
  for (const LiveRow& row : rows) {
    if (row.waiting) waiting.push_back(*row.waiting);
  }
  if (waiting.empty()) return;
  std::ranges::sort(waiting);
  const double median = (waiting[(waiting.size() - 1) / 2] + waiting[waiting.size() / 2]) / 2;
  for (LiveRow& row : rows) {
    row.is_late = row.waiting ? *row.waiting < median / 2 && median - *row.waiting > kLateBy
                              : row.is_silent();
  }
}

}  // namespace

std::vector<LiveRows> live_jobs(const std::vector<LiveNote>& notes,
                                const std::vector<LiveNote>& before, TimePoint now) {
  std::vector<LiveRows> jobs;
  for (const LiveNote& note : notes) {
    const bool continues = !jobs.empty() && jobs.back().front().note.who.job == note.who.job &&
                           jobs.back().front().note.who.size == note.who.size;
    if (!continues) jobs.emplace_back();
    jobs.back().push_back(row_of(note, notes, before, now));
  }
  for (LiveRows& rows : jobs) mark_late(rows);
  return jobs;
}

}  // namespace stretto::tools
