// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/rank_card.h"

#include <gtest/gtest.h>

namespace stretto::bootstrap {
namespace {

// Any part of a card may become part of a message.
TEST(RankCard, NothingInItSteersATerminal) {
  RankCard card = local_card();
  card.streams = 1;
  std::string RankCard::*const fields[] = {
      &RankCard::machine, &RankCard::network, &RankCard::pid_namespace, &RankCard::node,
      &RankCard::links,   &RankCard::address, &RankCard::store};
  for (const auto field : fields) card.*field = "a\x1b[2J\x9b";
  const Result<RankCard> parsed = parse_card(print(card));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  for (const auto field : fields) EXPECT_EQ(parsed.value().*field, "a?[2J?");
}

TEST(RankCard, TellsOfAllProcessorsOfALargeHost) {
  RankCard card = local_card();
  card.processors.reset();
  for (const bool all : {false, true}) {
    all ? card.processors.set() : card.processors.set(767);
    const Result<RankCard> parsed = parse_card(print(card));
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed.value().processors, card.processors);
  }
}

}  // namespace
}  // namespace stretto::bootstrap
