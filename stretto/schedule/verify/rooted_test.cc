// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <utility>

#include <gtest/gtest.h>

#include "stretto/schedule/builder.h"
#include "stretto/schedule/verify/parts.h"
#include "tests/support/broken_schedules.h"

namespace stretto::schedule {
namespace {

// What verify() refuses in collectives that have a root or move personal chunks. For the others see
// verify_test.cc.

Slot& target(Schedule& schedule, const Step& step) {
  return schedule.places[step.targets_begin].slot;
}
Slot& source(Schedule& schedule, const Step& step) {
  return schedule.places[step.sources_begin].slot;
}

TEST(VerifyRooted, AnOutputOfARankThatIsNotTheRoot) {
  Schedules schedules = build(Collective::reduce, "direct", 4, 2);
  target(schedules[1], nth(schedules[1], StepKind::reduce)) = output(1);
  expect_refused_because(schedules,
                         "reduce by direct on 4 ranks: rank 1 step 6 uses output chunk 1 of "
                         "rank 1, which that rank does not have");
  schedules = build(Collective::gather, "binomial_tree", 4, 2);
  target(schedules[0], nth(schedules[0], StepKind::recv)) = output(1);
  expect_refused_because(schedules, "uses output chunk 1 of rank 0, which that rank does not have");
}

TEST(VerifyRooted, AnOutputOfAnotherRankInMappedMemory) {
  Schedules schedules = build(Collective::gather, "direct_mapped", 3, 1);
  schedules[2].places[nth(schedules[2], StepKind::copy).targets_begin].rank = 2;
  expect_refused_because(schedules, "uses output chunk 2 of rank 2, which that rank does not have");
}

TEST(VerifyRooted, AnInputOfARankThatIsNotTheRoot) {
  Schedules schedules = build(Collective::scatter, "binomial_tree", 4, 1);
  source(schedules[3], nth(schedules[3], StepKind::send)) = input(0);
  expect_refused_because(schedules, "uses input chunk 0 of rank 3, which that rank does not have");
}

TEST(VerifyRooted, RanksThatDisagreeAboutTheRoot) {
  Schedules schedules = build(Collective::gather, "direct", 3, 1);
  schedules[2] = build(Collective::gather, "direct", 3, 0)[2];
  expect_refused_because(schedules, "rank 2 runs another algorithm than rank 0");
}

TEST(VerifyRooted, AChunkOverwrittenOnItsWay) {
  Schedules schedules = build(Collective::scatter, "binomial_tree", 8);
  for (Place& place : schedules[4].places) {
    if (place.slot.buffer == Buffer::raw) place.slot.index = 0;
  }
  expect_refused_because(schedules, "finds chunk 7");
}

TEST(VerifyRooted, SubtreesOfAMergedNodeInAnotherOrder) {
  Schedules schedules = build(Collective::reduce, "knomial", 4);
  const Step& reduce = nth(schedules[0], StepKind::reduce);
  std::swap(schedules[0].places[reduce.sources_begin + 1],
            schedules[0].places[reduce.sources_begin + 2]);
  expect_refused_because(schedules,
                         "is combined as ((0 2)(1 3)); the canonical order is ((0 1)(2 3))");
}

// The root writes into the scratch of the others, who must not use it any more.
TEST(VerifyRooted, ScatterNeedsTheSecondSetOfScratch) {
  const Schedules schedules = build(Collective::scatter, "staged_mapped", 3);
  EXPECT_TRUE(check_races(schedules, 2).ok());
  EXPECT_FALSE(check_races(schedules, 1).ok());
}

TEST(VerifyPersonal, AnAllToAllWithTooFewChunks) {
  Schedules schedules = build(Collective::all_to_all, "pairwise", 4);
  for (Schedule& schedule : schedules) schedule.chunk_count = 4;
  expect_refused_because(schedules,
                         "all_to_all by pairwise on 4 ranks: 4 chunks, but 16 are needed");
}

TEST(VerifyPersonal, AChunkThatIsMeantForAnotherRank) {
  Schedules schedules = build(Collective::all_to_all, "pairwise", 3);
  source(schedules[1], nth(schedules[1], StepKind::send)) = input(3);
  expect_refused_because(schedules, "different chunks");
  Step& receive = nth(schedules[2], StepKind::recv);
  target(schedules[2], receive) = output(3);
  expect_refused_because(schedules, "uses output chunk 3 of rank 2, which that rank does not have");
}

TEST(VerifyPersonal, AChunkOfARankThatDoesNotHaveIt) {
  Schedules schedules = build(Collective::all_to_all, "direct_mapped", 3);
  schedules[1].places[nth(schedules[1], StepKind::copy, 1).sources_begin].rank = 0;
  expect_refused_because(schedules, "uses input chunk 7 of rank 0, which that rank does not have");
}

TEST(VerifyPersonal, AChunkThatARankKeepsToItself) {
  Schedules schedules = build(Collective::all_to_all, "bruck", 3);
  erase_nth(schedules[2], StepKind::copy);
  expect_refused_because(
      schedules, "all_to_all by bruck on 3 ranks: output chunk 8 on rank 2 is never written");
}

// This is why a chunk that makes three hops or more has a second slot.
TEST(VerifyPersonal, ADeadlockWhereChunksOnTheirWayHaveOneSlot) {
  Schedules schedules = build(Collective::all_to_all, "bruck", 8);
  for (Schedule& schedule : schedules) {
    for (Place& place : schedule.places) {
      if (place.slot.buffer == Buffer::raw) place.slot.index %= 8;
    }
  }
  expect_refused_because(schedules, "all_to_all by bruck on 8 ranks: deadlock: ");
}

TEST(VerifyBarrier, ATreeThatLosesALeaf) {
  Schedules schedules = build(Collective::barrier, "binomial_tree", 4);
  // Rank 3 goes on without leave, and rank 2 does not wait for it.
  schedules[3].steps.clear();
  std::erase_if(schedules[2].steps, [](const Step& step) { return step.peer == 3; });
  expect_refused_because(schedules, "rank 0 leaves without knowing that rank 3 has come");
}

}  // namespace
}  // namespace stretto::schedule
