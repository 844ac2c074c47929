// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/id.h"

#include <sstream>
#include <type_traits>
#include <unordered_set>

#include <gtest/gtest.h>

namespace stretto {
namespace {

TEST(IdTest, ReadsLikeANumber) {
  const Rank root = 3;
  EXPECT_EQ(root.value(), 3);
  EXPECT_EQ(static_cast<std::size_t>(root), 3u);
  EXPECT_LT(Rank(2), root);
  EXPECT_EQ(Rank(), Rank(0));
}

TEST(IdTest, KindsCannotBeMixedUp) {
  EXPECT_FALSE((std::is_convertible_v<Rank, ChunkIndex>));
  EXPECT_FALSE((std::is_constructible_v<Rank, ChunkIndex>));
  EXPECT_FALSE((std::is_convertible_v<Rank, int>));
}

TEST(IdTest, IsPrintedAsItsNumber) {
  std::ostringstream text;
  text << "rank " << Rank(7) << ", " << kAnyRank;
  EXPECT_EQ(text.str(), "rank 7, -1");
}

TEST(IdTest, CanBeHashed) {
  const std::unordered_set<Rank> ranks{0, 1, 1, 2};
  EXPECT_EQ(ranks.size(), 3u);
  EXPECT_TRUE(ranks.contains(2));
  EXPECT_FALSE(ranks.contains(3));
}

}  // namespace
}  // namespace stretto
