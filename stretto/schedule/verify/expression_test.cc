// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/verify/expression.h"

#include <gtest/gtest.h>

#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {
namespace {

std::vector<Expression> ranks(ExpressionPool& pool, int count) {
  std::vector<Expression> values;
  for (int rank = 0; rank < count; ++rank) values.push_back(pool.leaf(rank, 0));
  return values;
}

// As kernel/reduce.h draws it.
TEST(ExpressionPool, TheCanonicalTreeSplitsAtPowersOfTwo) {
  ExpressionPool pool;
  EXPECT_EQ(pool.text(pool.tree(ranks(pool, 1))), "0");
  EXPECT_EQ(pool.text(pool.tree(ranks(pool, 3))), "((0 1)2)");
  EXPECT_EQ(pool.text(pool.tree(ranks(pool, 7))), "(((0 1)(2 3))((4 5)6))");
  EXPECT_EQ(pool.text(pool.tree(ranks(pool, 8))), "(((0 1)(2 3))((4 5)(6 7)))");
}

TEST(ExpressionPool, EqualExpressionsHaveEqualNumbers) {
  ExpressionPool pool;
  const auto values = ranks(pool, 6);
  const Expression left = pool.tree(std::span(values).first(4));
  const Expression right = pool.tree(std::span(values).subspan(4));
  EXPECT_EQ(pool.combined(left, right), pool.tree(values));
  EXPECT_NE(pool.combined(right, left), pool.tree(values));
  EXPECT_NE(pool.finished(left), left);
  EXPECT_EQ(pool.finished(left), pool.finished(left));
  EXPECT_NE(pool.leaf(0, 0), pool.leaf(0, 1));
}

TEST(ExpressionPool, LeavesComeFromLeftToRight) {
  ExpressionPool pool;
  const Expression value = pool.finished(
      pool.combined(pool.leaf(2, 5), pool.combined(pool.leaf(0, 5), pool.leaf(2, 5))));
  std::vector<int> order;
  for (const auto& leaf : pool.leaves(value)) order.push_back(leaf.rank.value());
  EXPECT_EQ(order, (std::vector<int>{2, 0, 2}));
  EXPECT_EQ(pool.chunk_of(value), 5);
}

TEST(CanonicalTree, SplitsAboveAPositionNarrowDownToIt) {
  for (int count = 1; count <= 40; ++count) {
    for (int position = 0; position < count; ++position) {
      int begin = 0;
      int end = count;
      for (const Split& split : splits_above(position, count)) {
        EXPECT_EQ(split.begin, begin);
        EXPECT_EQ(split.end, end);
        (position < split.middle ? end : begin) = split.middle;
      }
      EXPECT_EQ(end - begin, 1);
      EXPECT_EQ(begin, position);
    }
  }
}

}  // namespace
}  // namespace stretto::schedule
