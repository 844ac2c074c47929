// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/canonical_tree.h"

#include <gtest/gtest.h>

namespace stretto::schedule {
namespace {

using Nodes = std::vector<std::vector<std::int32_t>>;

TEST(CanonicalTree, OneLevelAtATimeIsTheTreeItself) {
  for (int count = 1; count <= 40; ++count) {
    for (int position = 0; position < count; ++position) {
      const auto splits = splits_above(position, count);
      const Nodes nodes = merged_nodes_above(position, count, 1);
      ASSERT_EQ(nodes.size(), splits.size());
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        const std::vector<std::int32_t> node = {splits[i].begin, splits[i].middle, splits[i].end};
        EXPECT_EQ(nodes[i], node);
      }
    }
  }
}

TEST(CanonicalTree, TwoLevelsMergeIntoNodesOfUpToFour) {
  EXPECT_EQ(merged_nodes_above(6, 16, 2), (Nodes{{0, 4, 8, 12, 16}, {4, 5, 6, 7, 8}}));
  EXPECT_EQ(merged_nodes_above(2, 3, 2), (Nodes{{0, 1, 2, 3}}));
  EXPECT_EQ(merged_nodes_above(4, 5, 2), (Nodes{{0, 2, 4, 5}}));
  EXPECT_EQ(merged_nodes_above(3, 5, 2), (Nodes{{0, 2, 4, 5}, {2, 3, 4}}));
  EXPECT_EQ(merged_nodes_above(0, 1, 2), Nodes());
}

}  // namespace
}  // namespace stretto::schedule
