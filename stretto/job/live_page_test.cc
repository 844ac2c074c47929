// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/live_page.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/in_child.h"

namespace stretto::job {
namespace {

using std::chrono::milliseconds;

// Returns only the notes of `job`, because jobs of other tests may run here, too.
std::vector<LiveNote> notes_of(const std::string& job) {
  std::vector<LiveNote> notes = find_live_notes();
  std::erase_if(notes, [&](const LiveNote& note) { return note.who.job != job; });
  return notes;
}

std::string own_job(const std::string& name) { return name + std::to_string(::getpid()); }

TEST(LivePage, IsFoundByJobAndRank) {
  const std::string job = own_job("found");
  LivePage last = LivePage::create({job, 2, 3}).or_throw();
  LivePage first = LivePage::create({job, 0, 3}).or_throw();
  LivePage silent = LivePage::create({job, 1, 3}).or_throw();
  last.write({});
  first.write({.waited = milliseconds(1500), .collectives = 7, .doing = "is in barrier() #8"});

  const std::vector<LiveNote> notes = notes_of(job);
  ASSERT_EQ(notes.size(), 2U) << "rank 1 has written nothing";
  EXPECT_EQ(notes[0].who.rank, 0);
  EXPECT_EQ(notes[0].who.size, 3);
  EXPECT_EQ(notes[0].pid, ::getpid());
  EXPECT_EQ(notes[0].state.waited, milliseconds(1500));
  EXPECT_EQ(notes[0].state.collectives, 7U);
  EXPECT_EQ(notes[0].state.doing, "is in barrier() #8");
  EXPECT_LT(Clock::now() - notes[0].written, std::chrono::seconds(5));
  EXPECT_EQ(notes[1].who.rank, 2);
  EXPECT_EQ(notes[1].state.doing, "");
}

// A child, such as a worker of a DataLoader, may outlive its rank.
TEST(LivePage, IsThatOfItsProcessThoughAChildHasItToo) {
  const std::string job = own_job("child");
  int until_closed[2];
  ASSERT_EQ(::pipe(until_closed), 0);
  const auto writes_and_dies = [&] {
    LivePage page = LivePage::create({job, 0, 2}).or_throw();
    page.write({});
    if (::fork() == 0) {
      ::close(until_closed[1]);
      char none;
      ::_exit(::read(until_closed[0], &none, 1) == 0 ? 0 : 1);
    }
    return static_cast<int>(notes_of(job).size());
  };
  EXPECT_EQ(testing::exit_code_in_child(writes_and_dies), 1);
  EXPECT_TRUE(notes_of(job).empty());
  ::close(until_closed[0]);
  ::close(until_closed[1]);
}

TEST(LivePage, IsGoneWithItsRank) {
  const std::string job = own_job("gone");
  LivePage::create({job, 0, 2}).or_throw().write({});
  EXPECT_TRUE(notes_of(job).empty());
}

TEST(LivePage, WhatNoRankWritesIsNoNote) {
  const auto is_note = [](const std::string& text) {
    return decode_live_note({.text = text, .written = {}}).has_value();
  };
  EXPECT_TRUE(is_note("0 2 4711 0 0 job "));
  EXPECT_FALSE(decode_live_note({"0 2 4711 0 0 job ", TimePoint::min()}));
  for (const char* text : {"", "0 2 4711 0 0", "2 2 4711 0 0 job x", "-1 2 4711 0 0 job x",
                           "0 2 4711 -1 0 job x", "0 2 4711 0 -1 job x", "0 2 x 0 0 job x",
                           "02 4711 0 0 job x", "0 99999999999 1 0 0 job x"}) {
    EXPECT_FALSE(is_note(text)) << text;
  }
}

}  // namespace
}  // namespace stretto::job
