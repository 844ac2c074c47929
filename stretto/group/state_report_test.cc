// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/state_report.h"

#include <gtest/gtest.h>

namespace stretto::group {
namespace {

TEST(StateReport, ComesBackAsItWasSent) {
  for (const std::vector<Rank>& waits_for : {std::vector<Rank>{}, {7}, {0, 12, 3}}) {
    const auto back = decode_state_report(
        encode({.has_entered = true, .waits_for = waits_for, .text = "is in barrier() #3"}));
    ASSERT_TRUE(back.has_value());
    EXPECT_TRUE(back->has_entered);
    EXPECT_EQ(back->waits_for, waits_for);
    EXPECT_EQ(back->text, "is in barrier() #3");
  }
  EXPECT_FALSE(decode_state_report("- has not called shrink")->has_entered);
}

TEST(StateReport, LeavesRoomForItsText) {
  const StateReport report{.waits_for = std::vector<Rank>(1000, 99'999), .text = "is in it"};
  const std::string sent = encode(report);
  EXPECT_LT(sent.size(), 128u);
  EXPECT_EQ(decode_state_report(sent)->text, "is in it");
}

TEST(StateReport, OfNoCorrectPeerIsNone) {
  for (const char* text : {"", "+", "+ ", "is in it", "?1 is in it", "+1", "+1,,2 is in it",
                           "+1;2 is in it", "+-1 is in it", "+99999999999 is in it", " x"}) {
    EXPECT_FALSE(decode_state_report(text).has_value()) << text;
  }
}

TEST(StateReport, LongListsOfRanksAreCutShort) {
  EXPECT_EQ(list_ranks(std::vector<Rank>{3}), "rank 3");
  EXPECT_EQ(list_ranks(std::vector<Rank>{0, 2, 5}), "ranks 0, 2, 5");
  EXPECT_EQ(list_ranks(std::vector<Rank>(64, 1)), "ranks 1, 1, 1, 1, 1, 1, 1, 1 and 56 more");
}

}  // namespace
}  // namespace stretto::group
