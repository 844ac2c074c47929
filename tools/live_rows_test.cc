// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/live_rows.h"

#include <string>

#include <gtest/gtest.h>

namespace stretto::tools {
namespace {

using job::LiveNote;
using std::chrono::milliseconds;

constexpr TimePoint kThen = TimePoint() + std::chrono::seconds(100);
constexpr TimePoint kNow = kThen + std::chrono::seconds(2);

// The note of a process that has this rank in all its groups.
LiveNote note_of(const std::string& job, int rank, TimePoint written, Duration waited) {
  return {
      .who = {job, rank, 3}, .pid = 100 + rank, .written = written, .state = {.waited = waited}};
}

// The notes of three processes that have all waited for `waited` in a group.
std::vector<LiveNote> notes_of(const std::string& job, TimePoint written, Duration waited) {
  std::vector<LiveNote> notes;
  for (int rank = 0; rank < 3; ++rank) notes.push_back(note_of(job, rank, written, waited));
  return notes;
}

TEST(LiveRows, AGroupThatHasGoneMakesNobodyLate) {
  std::vector<LiveNote> before = notes_of("all", kThen, milliseconds(10000));
  before.push_back(note_of("gone", 0, kThen, milliseconds(50000)));
  const auto jobs = live_jobs(notes_of("all", kNow, milliseconds(11800)), before, kNow);
  ASSERT_EQ(jobs.size(), 1u);
  ASSERT_EQ(jobs[0].size(), 3u);
  for (const LiveRow& row : jobs[0]) {
    EXPECT_EQ(row.waiting.has_value(), row.note.who.rank != 0) << "it has waited in that, perhaps";
    EXPECT_NEAR(row.waiting.value_or(0.9), 0.9, 1e-9) << row.note.who.rank;
    EXPECT_FALSE(row.is_late) << row.note.who.rank;
  }
}

TEST(LiveRows, AProcessWaitsInAllItsGroups) {
  std::vector<LiveNote> notes = notes_of("all", kNow, milliseconds(10200));
  for (const int rank : {0, 1}) {
    notes.push_back(note_of("new", rank, kNow, milliseconds(1400)));
  }
  const auto jobs = live_jobs(notes, notes_of("all", kThen, milliseconds(10000)), kNow);
  ASSERT_EQ(jobs.size(), 2u);
  ASSERT_EQ(jobs[0].size(), 3u);
  EXPECT_NEAR(jobs[0][0].waiting.value_or(-1), 0.8, 1e-9);
  EXPECT_NEAR(jobs[0][2].waiting.value_or(-1), 0.1, 1e-9);
  EXPECT_FALSE(jobs[0][0].is_late);
  EXPECT_TRUE(jobs[0][2].is_late) << "the others wait for it";
  EXPECT_FALSE(jobs[1][0].waiting) << "it was not there before";
}

}  // namespace
}  // namespace stretto::tools
