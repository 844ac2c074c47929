// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/verify/verify.h"

#include <algorithm>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "stretto/schedule/builder.h"
#include "stretto/schedule/verify/parts.h"
#include "tests/support/broken_schedules.h"

namespace stretto::schedule {
namespace {

// Returns the sources of the schedule's first reduce.
Place* reduce_sources(Schedule& schedule) {
  return &schedule.places[nth(schedule, StepKind::reduce).sources_begin];
}

void expect_refused(const Schedules& schedules, const std::string& reason) {
  const Status status = verify(schedules);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), reason);
}

constexpr ScheduleBuilder::Options kAllReduce{
    .algorithm = "pair", .collective = Collective::all_reduce, .order = Order::canonical};

// Makes the schedules of two ranks. `fill` adds the steps of one.
template <class Fill>
Schedules pair(Fill fill, const ScheduleBuilder::Options& options = kAllReduce) {
  Schedules schedules;
  for (int rank = 0; rank < 2; ++rank) {
    ScheduleBuilder builder({.rank = rank, .rank_count = 2}, options);
    fill(builder, rank);
    schedules.push_back(std::move(builder).build());
  }
  return schedules;
}

TEST(Verify, AcceptsACorrectPair) {
  const Status status = verify(pair([](ScheduleBuilder& schedule, int rank) {
    schedule.send(input(0), 1 - rank);
    schedule.recv(1 - rank, raw(0, 0));
    const Slot left = rank == 0 ? input(0) : raw(0, 0);
    const Slot right = rank == 0 ? raw(0, 0) : input(0);
    schedule.reduce({left, right}, {output(0)}).completes();
  }));
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Verify, AMissingContribution) {
  Schedules schedules = build(Collective::all_reduce, "direct", 4);
  --nth(schedules[2], StepKind::reduce).sources_end;
  expect_refused(schedules,
                 "all_reduce by direct on 4 ranks: output chunk 2 on rank 0 lacks rank 3");
}

TEST(Verify, AContributionTwice) {
  Schedules schedules = build(Collective::all_reduce, "direct", 4);
  reduce_sources(schedules[1])[2] = reduce_sources(schedules[1])[0];
  expect_refused(schedules,
                 "all_reduce by direct on 4 ranks: output chunk 1 on rank 0 holds rank 0 twice");
}

TEST(Verify, AnotherOrderThanCanonical) {
  Schedules schedules = build(Collective::reduce_scatter, "direct", 4);
  std::swap(reduce_sources(schedules[3])[0], reduce_sources(schedules[3])[1]);
  expect_refused(schedules,
                 "reduce_scatter by direct on 4 ranks: output chunk 3 on rank 3 is combined as "
                 "((1 0)(2 3)); the canonical order is ((0 1)(2 3))");
}

TEST(Verify, AFixedOrderThatClaimsToBeCanonical) {
  Schedules schedules = build(Collective::all_reduce, "ring", 4);
  for (Schedule& schedule : schedules) schedule.order = Order::canonical;
  expect_refused(schedules,
                 "all_reduce by ring on 4 ranks: output chunk 0 on rank 0 is combined as "
                 "(((1 2)3)0); the canonical order is ((0 1)(2 3))");
}

TEST(Verify, AnOrderThatDiffersBetweenRanks) {
  const auto own_first = [](ScheduleBuilder& schedule, int rank) {
    schedule.send(input(0), 1 - rank);
    schedule.recv(1 - rank, raw(0, 0));
    schedule.reduce({input(0), raw(0, 0)}, {output(0)}).completes();
  };
  ScheduleBuilder::Options fixed = kAllReduce;
  fixed.order = Order::fixed;
  expect_refused(
      pair(own_first, fixed),
      "all_reduce by pair on 2 ranks: output chunk 0 on rank 1 is combined as (1 0), but "
      "on rank 0 as (0 1)");
}

TEST(Verify, AnOrderThatDoesNotFitTheCollective) {
  Schedules schedules = build(Collective::all_gather, "ring", 3);
  for (Schedule& schedule : schedules) schedule.order = Order::canonical;
  expect_refused_because(schedules, "the stated order does not fit the collective");
}

TEST(Verify, AMeanThatIsNeverDivided) {
  ScheduleBuilder builder({}, kAllReduce);
  builder.copy(input(0), output(0));
  expect_refused({std::move(builder).build()},
                 "all_reduce by pair on 1 rank: output chunk 0 on rank 0 is not divided: no step "
                 "completes it");
}

TEST(Verify, APartialValueInTheOutput) {
  Schedules schedules = build(Collective::all_reduce, "direct", 3);
  nth(schedules[1], StepKind::reduce).completes = false;
  expect_refused(
      schedules,
      "all_reduce by direct on 3 ranks: rank 1 step 4 puts a partial value, which is not "
      "divided yet, outside of partial slots");
}

TEST(Verify, AMeanThatIsDividedTwice) {
  const auto twice = [](ScheduleBuilder& schedule, int rank) {
    schedule.send(input(0), 1 - rank);
    schedule.recv(1 - rank, raw(0, 0));
    const Slot left = rank == 0 ? input(0) : raw(0, 0);
    const Slot right = rank == 0 ? raw(0, 0) : input(0);
    schedule.reduce({left, right}, {output(0)}).completes();
    schedule.reduce({output(0)}, {output(0)}).completes();
  };
  expect_refused(pair(twice),
                 "all_reduce by pair on 2 ranks: rank 0 step 3 (reduce output c0 > output c0, "
                 "completes) reduces what is finished already; it would be divided twice");
}

TEST(Verify, AFinishedResultInAPartialSlot) {
  const auto finish_in_partial = [](ScheduleBuilder& schedule, int) {
    schedule.reduce({input(0)}, {partial(0, 0)}).completes();
  };
  expect_refused_because(pair(finish_in_partial),
                         "rank 0 step 0 puts a finished result into a partial slot");
}

TEST(Verify, AMessageThatNobodyReceives) {
  Schedules schedules = build(Collective::all_reduce, "ring", 3);
  schedules[2].steps.pop_back();
  expect_refused(schedules,
                 "all_reduce by ring on 3 ranks: rank 1 step 8 (send output c0 to 2) has no "
                 "partner: rank 2 never receives it");
}

TEST(Verify, AMessageThatNobodySends) {
  Schedules schedules = build(Collective::broadcast, "binomial_tree", 2);
  schedules[0].steps.clear();
  expect_refused(schedules,
                 "broadcast by binomial_tree on 2 ranks: rank 1 step 0 (recv output c0 from 0) has "
                 "no partner: rank 0 never sends it");
}

TEST(Verify, AMessageOutOfTurn) {
  Schedules schedules = build(Collective::all_gather, "ring", 3);
  nth(schedules[1], StepKind::send).message = 1;
  expect_refused_because(schedules, "rank 1 step 1 is message 1 where 0 is next");
}

TEST(Verify, ASlotOfTheWrongKind) {
  Schedules schedules = build(Collective::all_reduce, "recursive_doubling", 4);
  const Step& second = nth(schedules[2], StepKind::recv, 1);
  schedules[2].places[second.targets_begin].slot = raw(0, 0);
  expect_refused(schedules,
                 "all_reduce by recursive_doubling on 4 ranks: rank 0 step 3 (send partial 0 (c0) "
                 "to 2) does not fit rank 2 step 4 (recv raw 0 (c0) from 0): slots of different "
                 "kinds");
}

TEST(Verify, AMessageThatChangesItsChunk) {
  Schedules schedules = build(Collective::all_gather, "direct", 3);
  const Step& receive = nth(schedules[0], StepKind::recv);
  schedules[0].places[receive.targets_begin].slot = output(1);
  expect_refused_because(schedules, "different chunks");
}

// This is why the ring has a second partial slot.
TEST(Verify, ADeadlock) {
  Schedules schedules = build(Collective::all_reduce, "ring", 4);
  for (Schedule& schedule : schedules) {
    for (Place& place : schedule.places) {
      if (place.slot.buffer == Buffer::partial) place.slot.index = 0;
    }
  }
  expect_refused(schedules,
                 "all_reduce by ring on 4 ranks: deadlock: "
                 "rank 0 step 3 (send partial 0 (c2) to 1) waits for "
                 "rank 1 step 4 (recv partial 0 (c2) from 0), which waits for "
                 "rank 1 step 3 (send partial 0 (c3) to 2), which waits for "
                 "rank 2 step 4 (recv partial 0 (c3) from 1), which waits for "
                 "rank 2 step 3 (send partial 0 (c0) to 3), which waits for "
                 "rank 3 step 4 (recv partial 0 (c0) from 2), which waits for "
                 "rank 3 step 3 (send partial 0 (c1) to 0), which waits for "
                 "rank 0 step 4 (recv partial 0 (c1) from 3), which waits for "
                 "rank 0 step 3 (send partial 0 (c2) to 1)");
}

TEST(Verify, ABarrierThatForgetsARank) {
  Schedules schedules = build(Collective::barrier, "recursive_doubling", 5);
  for (Schedule& schedule : schedules) schedule.steps.resize(4);
  expect_refused(schedules,
                 "barrier by recursive_doubling on 5 ranks: rank 0 leaves without knowing that "
                 "rank 1 has come");
}

TEST(Verify, AMappedBarrierWithoutSync) {
  Schedules schedules = build(Collective::barrier, "direct_mapped", 2);
  for (Schedule& schedule : schedules) schedule.steps.clear();
  expect_refused_because(schedules, "rank 0 leaves without knowing that rank 1 has come");
}

TEST(Verify, AnInputThatIsOverwrittenInPlace) {
  const auto answer_too_early = [](ScheduleBuilder& schedule, int rank) {
    if (rank == 0) {
      schedule.recv(1, output(0));
      schedule.send(input(0), 1);
      schedule.recv(1, output(0));
    } else {
      schedule.send(input(0), 0);
      schedule.recv(0, raw(0, 0));
      schedule.reduce({raw(0, 0), input(0)}, {output(0)}).completes();
      schedule.send(output(0), 0);
    }
  };
  expect_refused(
      pair(answer_too_early),
      "all_reduce by pair on 2 ranks: in place: rank 0 step 1 (send input c0 to 1) reads "
      "an input that an output has overwritten");
}

TEST(Verify, AWriteToTheInput) {
  Schedules schedules = build(Collective::broadcast, "direct_mapped", 2);
  Step& copy = nth(schedules[1], StepKind::copy);
  schedules[1].places[copy.targets_begin].slot = input(0);
  expect_refused(schedules,
                 "broadcast by direct_mapped on 2 ranks: rank 1 step 1 writes the input, which is "
                 "read only");
}

TEST(Verify, AnInputThatTheRankDoesNotHave) {
  Schedules schedules = build(Collective::all_gather, "direct_mapped", 3);
  Step& copy = nth(schedules[1], StepKind::copy, 1);
  schedules[1].places[copy.sources_begin].rank = 0;
  expect_refused_because(schedules, "uses input chunk 2 of rank 0, which that rank does not have");
}

TEST(Verify, AnOutputThatTheRankDoesNotHave) {
  Schedules schedules = build(Collective::reduce_scatter, "direct_mapped", 3);
  for (Place& place : schedules[1].places) place.slot.index = 0;
  for (Place& place : schedules[1].places) place.slot.chunk = 0;
  expect_refused_because(schedules, "uses output chunk 0 of rank 1, which that rank does not have");
}

TEST(Verify, ASlotThatNothingHasWritten) {
  Schedules schedules = build(Collective::all_reduce, "staged_mapped", 3);
  erase_nth(schedules[2], StepKind::copy);
  expect_refused(schedules,
                 "all_reduce by staged_mapped on 3 ranks: rank 0 step 3 (reduce input c0 of 0, raw "
                 "0 (c0) of 1-2 > output c0 of 0, raw 0 (c0) of 0, completes) reads what nothing "
                 "has written");
}

TEST(Verify, AnOutputThatIsNeverWritten) {
  Schedules schedules = build(Collective::all_gather, "direct_mapped", 3);
  erase_nth(schedules[2], StepKind::copy, 2);
  expect_refused(
      schedules,
      "all_gather by direct_mapped on 3 ranks: output chunk 1 on rank 2 is never written");
}

TEST(Verify, AnInputOfARankThatIsNotTheRoot) {
  Schedules schedules = build(Collective::broadcast, "direct_mapped", 2);
  for (Schedule& schedule : schedules) schedule.root = 1;
  expect_refused_because(schedules, "uses input chunk 0 of rank 0");
}

TEST(Verify, ARaceBecauseASyncIsMissing) {
  Schedules schedules = build(Collective::all_reduce, "staged_mapped", 3);
  for (Schedule& schedule : schedules) erase_nth(schedule, StepKind::sync);
  expect_refused(schedules,
                 "all_reduce by staged_mapped on 3 ranks: race: rank 1 writes raw slot 0 of rank 1 "
                 "while rank 0 touches it, after sync 0");
}

TEST(Verify, ASlotThatTwoRanksTake) {
  Schedules schedules = build(Collective::all_gather, "staged_mapped", 3);
  for (Step& step : schedules[0].steps) step.takes = step.kind == StepKind::copy;
  expect_refused(schedules,
                 "all_gather by staged_mapped on 3 ranks: race: rank 1 takes raw slot 0 of rank 2 "
                 "while rank 0 touches it, after sync 1");
}

TEST(Verify, ASlotOverwrittenBeforeAnotherRankReadsIt) {
  const auto hasty = [](ScheduleBuilder& schedule, int rank) {
    for (const int chunk : {0, 1}) {
      if (rank == 0) schedule.copy(input(chunk), raw(0, chunk));
    }
    schedule.sync();
    for (const int chunk : {0, 1}) {
      schedule.copy(Place{0, rank == 0 ? input(chunk) : raw(0, chunk)}, output(chunk));
    }
  };
  expect_refused(pair(hasty, {.algorithm = "pair",
                              .collective = Collective::broadcast,
                              .access = Access::mapped,
                              .chunk_count = 2}),
                 "broadcast by pair on 2 ranks: rank 1 step 1 (copy raw 0 (c0) of 0 > output c0 of "
                 "1) finds chunk 1");
}

TEST(Verify, AStepThatMixesChunks) {
  Schedules schedules = build(Collective::all_reduce, "direct_mapped", 3);
  const Step& reduce = nth(schedules[0], StepKind::reduce);
  schedules[0].places[reduce.targets_begin].slot = output(1);
  expect_refused_because(schedules, "rank 0 step 1 mixes different chunks");
}

TEST(Verify, AnInputOverwrittenInPlaceWhileAnotherRankReadsIt) {
  const auto selfish = [](ScheduleBuilder& schedule, int rank) {
    schedule.sync();
    schedule.reduce({{0, input(0)}, {1, input(0)}}, {{rank, output(0)}}).completes();
    schedule.sync();
  };
  ScheduleBuilder::Options mapped = kAllReduce;
  mapped.access = Access::mapped;
  expect_refused(pair(selfish, mapped),
                 "all_reduce by pair on 2 ranks: race: rank 1 reads input chunk 0 of rank 0 "
                 "while rank 0 writes it, after sync 1");
}

TEST(Verify, ACallersBufferTouchedBeforeTheCallerHasEntered) {
  Schedules schedules = build(Collective::scatter, "direct_mapped", 2);
  for (Schedule& schedule : schedules) erase_nth(schedule, StepKind::sync, 0);
  expect_refused(schedules,
                 "scatter by direct_mapped on 2 ranks: rank 1 touches input chunk 1 of rank 0 "
                 "before that rank may have entered: a sync is missing");
}

TEST(Verify, ACallersBufferTouchedAfterTheCallerHasLeft) {
  Schedules schedules = build(Collective::scatter, "direct_mapped", 2);
  for (Schedule& schedule : schedules) erase_nth(schedule, StepKind::sync, 1);
  expect_refused(schedules,
                 "scatter by direct_mapped on 2 ranks: rank 1 touches input chunk 1 of rank 0 "
                 "after that rank may have left: a sync is missing");
}

TEST(Verify, RanksThatSyncUnequallyOften) {
  Schedules schedules = build(Collective::all_gather, "staged_mapped", 3);
  erase_nth(schedules[1], StepKind::sync);
  expect_refused(schedules,
                 "all_gather by staged_mapped on 3 ranks: rank 1 syncs 0 times, rank 0 1 times");
}

// Staged schedules rely on the reader's second set of scratch slots.
TEST(Verify, ScratchIsReusedTooEarlyWithoutASecondSet) {
  const Schedules schedules = build(Collective::reduce_scatter, "staged_mapped", 3);
  EXPECT_TRUE(check_races(schedules, 2).ok());
  EXPECT_EQ(check_races(schedules, 1).message(),
            "race: rank 0 writes raw slot 1 of rank 0 while rank 1 touches it, after sync 0 of a "
            "later run of the list");
  // A writer that has read the slot itself must not hide the other reader.
  Schedules broadcast = build(Collective::broadcast, "staged_mapped", 2);
  const Step& last_copy = broadcast[0].steps.back();
  broadcast[0].places[last_copy.sources_begin].slot = raw(0, 0);
  EXPECT_TRUE(check_races(broadcast, 2).ok());
  EXPECT_EQ(check_races(broadcast, 1).message(),
            "race: rank 0 writes raw slot 0 of rank 0 while rank 1 touches it, after sync 0 of a "
            "later run of the list");
}

TEST(Verify, HeadsThatDisagree) {
  Schedules schedules = build(Collective::all_reduce, "direct", 3);
  schedules[2] = build(Collective::all_reduce, "ring", 3)[2];
  expect_refused_because(schedules, "rank 2 runs another algorithm than rank 0");
  schedules.pop_back();
  expect_refused_because(schedules, "rank 0 expects 3 ranks, and there are 2");
  EXPECT_EQ(verify(Schedules()).message(), "no schedules");
}

TEST(Verify, StepsThatMakeNoSense) {
  Schedules schedules = build(Collective::all_reduce, "direct", 2);
  Schedules broken = schedules;
  broken[0].steps[0].sources_end = 99;
  expect_refused_because(broken, "rank 0 step 0 has no sound range of places");
  broken = schedules;
  broken[0].steps[0].peer = 0;
  expect_refused_because(broken, "rank 0 step 0 names no peer");
  broken = schedules;
  broken[1].steps[2].kind = StepKind::copy;
  expect_refused_because(broken, "rank 1 step 2 has 2 sources and 1 targets");
  broken = schedules;
  broken[1].steps[2].kind = StepKind::sync;
  expect_refused_because(broken, "rank 1 step 2 is a sync in a schedule without a team");
  broken = schedules;
  broken[1].places[0].rank = 0;
  expect_refused_because(broken, "rank 1 step 0 touches rank 0, which is not in its team");
  broken = schedules;
  broken[1].raw_slots = 0;
  expect_refused_because(broken, "rank 1 step 1 names raw slot 0 of 0");
}

std::string test_name(const ::testing::TestParamInfo<Algorithm>& info) {
  return std::string(name(info.param.collective)) + "_" + std::string(info.param.name);
}

class Canary : public ::testing::TestWithParam<Algorithm> {};

// Without any one step of any algorithm, verify() refuses the schedules. A verify() that accepts
// everything, or an algorithm with a useless step, fails here.
TEST_P(Canary, EveryStepIsNeeded) {
  for (const int n : {2, 3, 5}) {
    expect_every_step_is_needed(GetParam().build_all(n), GetParam().name);
  }
}

// Removes each sync from all ranks at once, and each message with both ends.
TEST_P(Canary, EverySyncAndEveryMessageIsNeeded) {
  const int n = 4;
  const Schedules schedules = GetParam().build_all(n);
  const auto syncs = std::ranges::count(schedules[0].steps, StepKind::sync, &Step::kind);
  for (int sync = 0; sync < syncs; ++sync) {
    Schedules broken = schedules;
    for (Schedule& schedule : broken) erase_nth(schedule, StepKind::sync, sync);
    EXPECT_FALSE(verify(broken).ok()) << "without sync " << sync;
  }
  for (int rank = 0; rank < n; ++rank) {
    for (std::size_t step = 0; step < schedules[rank].steps.size(); ++step) {
      const Step sent = schedules[rank].steps[step];
      if (sent.kind != StepKind::send) continue;
      Schedules broken = schedules;
      broken[rank].steps.erase(broken[rank].steps.begin() + step);
      auto& other = broken[static_cast<std::size_t>(sent.peer)].steps;
      std::erase_if(other, [&](const Step& s) {
        return s.kind == StepKind::recv && s.peer == rank && s.message == sent.message;
      });
      for (Step& s : broken[rank].steps) {
        s.message -= s.kind == StepKind::send && s.peer == sent.peer && s.message > sent.message;
      }
      for (Step& s : other) {
        s.message -= s.kind == StepKind::recv && s.peer == rank && s.message > sent.message;
      }
      EXPECT_FALSE(verify(broken).ok())
          << "without the message of rank " << rank << " step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Catalogue, Canary,
                         ::testing::ValuesIn(algorithms().begin(), algorithms().end()), test_name);

}  // namespace
}  // namespace stretto::schedule
