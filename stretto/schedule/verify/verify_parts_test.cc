// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/builder.h"
#include "stretto/schedule/canonical_tree.h"
#include "stretto/schedule/print.h"
#include "stretto/schedule/verify/expression.h"
#include "stretto/schedule/verify/proof.h"
#include "tests/support/expect_contains.h"

namespace stretto::schedule {
namespace {

std::vector<Expression> ranks(ExpressionPool& pool, int count) {
  std::vector<Expression> values;
  for (int rank = 0; rank < count; ++rank) values.push_back(pool.leaf(rank, 0));
  return values;
}

// The tree is the one that kernel/reduce.h draws.
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

TEST(ExpressionPool, RanksComeFromLeftToRight) {
  ExpressionPool pool;
  const Expression value = pool.finished(
      pool.combined(pool.leaf(2, 5), pool.combined(pool.leaf(0, 5), pool.leaf(2, 5))));
  EXPECT_EQ(pool.ranks(value), (std::vector<Rank>{2, 0, 2}));
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

int builds = 0;

// A ring in which rank 1 reads a slot that nothing has written.
void broken_all_gather(ScheduleBuilder& schedule, const Shape& shape) {
  ++builds;
  const int own = shape.rank.value();
  schedule.copy(input(own), output(own));
  for (int distance = 1; distance < shape.rank_count; ++distance) {
    const Rank from = neighbour(shape, -distance);
    schedule.send(shape.rank == 1 ? raw(0, own) : input(own), neighbour(shape, distance));
    schedule.recv(from, output(from.value()));
  }
}

const Algorithm kBroken{99,          "broken",         Collective::all_gather, Access::messages,
                        Order::none, broken_all_gather};

const Algorithm& two_level_all_reduce() {
  return *find_algorithm(Collective::all_reduce, Access::messages, "two_level");
}

TEST(Proof, ABrokenScheduleIsRefusedWithItsAlgorithmRanksAndStep) {
  const Status refused = prove(kBroken, {.rank_count = 70}, Verification::automatic);
  EXPECT_EQ(refused.code(), StatusCode::internal);
  const std::string text(refused.message());
  expect_contains(text, "all_gather by broken on 70 ranks");
  expect_contains(text, "rank 1 step 1");
  expect_contains(text, "does not run");
}

TEST(Proof, WhatIsKnownIsNotProvedAgain) {
  (void)prove(kBroken, {.rank_count = 71}, Verification::automatic);
  const int before = builds;
  EXPECT_FALSE(prove(kBroken, {.rank_count = 71}, Verification::always).ok());
  EXPECT_EQ(builds, before);
}

TEST(Proof, OnlyWhatIsWantedIsProved) {
  const int before = builds;
  EXPECT_TRUE(prove(kBroken, {.rank_count = 72}, Verification::never).ok());
  EXPECT_TRUE(prove(kBroken, {.rank_count = 8}, Verification::automatic).ok()) << "tests prove it";
  EXPECT_EQ(builds, before);
  EXPECT_FALSE(prove(kBroken, {.rank_count = 8}, Verification::always).ok());
  EXPECT_GT(builds, before);
}

// In this all_gather, nobody copies what others have.
void lonely_all_gather(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.sync();
  schedule.copy(input(shard_of(shape.rank)), output(shard_of(shape.rank)));
  schedule.sync();
}

TEST(Proof, WhatRanksOfOneProcessorRunIsProvedWhateverTestsProve) {
  const Algorithm lonely{99,          "lonely",         Collective::all_gather, Access::mapped,
                         Order::none, lonely_all_gather};
  const std::vector<std::int32_t> own = {0, 1, 2, 3}, shared = {0, 0, 1, 1};
  const Shape shape{.rank_count = 4};
  EXPECT_TRUE(prove(lonely, shape, Verification::automatic, own).ok()) << "as without processors";
  expect_failure(prove(lonely, shape, Verification::automatic, shared), StatusCode::internal,
                 "all_gather by lonely on 4 ranks");
  EXPECT_TRUE(prove(lonely, shape, Verification::never, shared).ok());
  EXPECT_FALSE(prove(lonely, shape, Verification::always, own).ok());
  const Algorithm& direct =
      *find_algorithm(Collective::all_gather, Access::mapped, "direct_mapped");
  EXPECT_TRUE(prove(direct, shape, Verification::automatic, shared).ok());
}

TEST(Proof, BeyondItsBoundItWarnsOnceInsteadOfProving) {
  const int before = builds;
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(prove(kBroken, {.rank_count = 129}, Verification::automatic).ok());
  EXPECT_TRUE(prove(kBroken, {.rank_count = 130}, Verification::automatic).ok());
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(builds, before);
  const std::size_t first = said.find("all_gather by broken runs on 129 ranks without a proof");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("by broken", first + 20), std::string::npos) << said;
}

TEST(Proof, TestsProveRegularLayouts) {
  const Algorithm& algorithm = two_level_all_reduce();
  const std::vector<std::int32_t> one_host(64), equal = {0, 0, 1, 1, 2, 2}, unequal = {0, 0, 1},
                                                in_turns = {0, 1, 0, 1};
  EXPECT_TRUE(is_proved_by_tests(algorithm, {.rank_count = 64, .hosts = one_host}));
  EXPECT_TRUE(is_proved_by_tests(algorithm, {.rank_count = 6, .hosts = equal}));
  EXPECT_FALSE(is_proved_by_tests(algorithm, {.rank_count = 3, .hosts = unequal}));
  EXPECT_FALSE(is_proved_by_tests(algorithm, {.rank_count = 4, .hosts = in_turns}));
  EXPECT_FALSE(is_proved_by_tests(algorithm, {.rank_count = 65}));
  const Algorithm& ring = *find_algorithm(Collective::all_gather, Access::messages, "ring");
  EXPECT_FALSE(is_proved_by_tests(ring, {.rank_count = 4, .hosts = in_turns}));
  const Algorithm& direct = *find_algorithm(Collective::all_gather, Access::messages, "direct");
  EXPECT_TRUE(is_proved_by_tests(direct, {.rank_count = 4, .hosts = in_turns}))
      << "it does not go by hosts";
  const Algorithm& tree = *find_algorithm(Collective::reduce, Access::messages, "binomial_tree");
  EXPECT_TRUE(is_proved_by_tests(tree, {.rank_count = 17, .root = 3}));
  EXPECT_FALSE(is_proved_by_tests(tree, {.rank_count = 18, .root = 3}));
}

// The tests prove two-level algorithms on hosts, and all others without hosts.
TEST(Proof, WhatTestsProveWithoutHostsDoesNotDependOnThem) {
  const std::vector<std::int32_t> one = {0, 0, 0, 0, 0, 0}, equal = {0, 0, 1, 1, 2, 2},
                                  unequal = {0, 0, 1, 0, 2, 2};
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name.starts_with("two_level")) continue;
    const std::string without = print(algorithm.build_all(6, 0, {}));
    for (const auto& hosts : {one, equal, unequal}) {
      if (!is_proved_by_tests(algorithm, {.rank_count = 6, .hosts = hosts})) continue;
      EXPECT_EQ(print(algorithm.build_all(6, 0, hosts)), without) << algorithm.name;
    }
  }
}

TEST(Proof, WhatIsRightRuns) {
  const std::vector<std::int32_t> unequal = {0, 0, 1, 0, 2};
  for (const Algorithm& algorithm : algorithms()) {
    const Status proof =
        prove(algorithm, {.rank_count = 5, .hosts = unequal}, Verification::always);
    EXPECT_TRUE(proof.ok()) << proof.message();
  }
}

}  // namespace
}  // namespace stretto::schedule
