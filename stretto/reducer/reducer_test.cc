// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/reducer.h"

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/failures.h"
#include "tests/support/gradients.h"
#include "tests/support/on_threads.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using testing::floats;
using testing::message_of;
using testing::three_gradients;

void fill(const Reducer& reducer, std::size_t index, float value) {
  for (float& element : floats(reducer, index)) element = value;
}

// Small limits: the first plan has the buckets {c}, {b, a}; other orders make three.
ReducerOptions small_buckets() { return {.bucket_bytes = {400}}; }

// Runs a step in which rank r fills gradient i with r * 10 + i, in the order `order`.
void run_step(Reducer& reducer, int rank, const std::vector<std::size_t>& order) {
  for (const std::size_t index : order) {
    fill(reducer, index, static_cast<float>(rank * 10) + static_cast<float>(index));
    reducer.mark_ready(index);
  }
  reducer.finalize();
}

void expect_mean(const Reducer& reducer, int size) {
  for (std::size_t i = 0; i < reducer.gradient_count(); ++i) {
    const float mean = static_cast<float>(size - 1) * 5 + static_cast<float>(i);
    for (const float element : floats(reducer, i)) ASSERT_EQ(element, mean) << "gradient " << i;
  }
}

TEST(Reducer, EveryRankGetsTheMeanWhateverTheOrderOfReadiness) {
  run_ranks(3, [](Communicator& communicator, int rank) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    const std::vector<std::vector<std::size_t>> orders = {{2, 1, 0}, {0, 1, 2}, {1, 0, 2}};
    for (int step = 0; step < 3; ++step) {
      run_step(reducer, rank, orders[static_cast<std::size_t>((rank + step) % 3)]);
      expect_mean(reducer, 3);
      reducer.rebuild();
    }
  });
}

TEST(Reducer, GradientsStandOnCacheLinesOfTheirOwnInBucketsOfOneDType) {
  run_ranks(1, [](Communicator& communicator) {
    const Reducer reducer(communicator,
                          {{"a", DType::f32, 3}, {"b", DType::f64, 5}, {"c", DType::f32, 0}});
    EXPECT_EQ(reducer.plan().size(), 2u);
    for (std::size_t i = 0; i < 3; ++i) {
      const View view = reducer.gradient(i).view;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 64, 0u);
    }
    EXPECT_EQ(reducer.gradient(1).view.dtype, DType::f64);
    EXPECT_EQ(reducer.gradient(1).view.count, 5u);
  });
}

TEST(Reducer, TheFirstPlanExpectsTheReverseOrder) {
  run_ranks(1, [](Communicator& communicator) {
    const Reducer reducer(communicator, three_gradients(), small_buckets());
    ASSERT_EQ(reducer.plan().size(), 2u);
    EXPECT_EQ(reducer.plan()[0].gradients, (std::vector<std::size_t>{2}));
    EXPECT_EQ(reducer.plan()[1].gradients, (std::vector<std::size_t>{1, 0}));
  });
}

TEST(Reducer, RebuildAdoptsTheOrderOfRankZeroOnceAndKeepsTheValues) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    EXPECT_FALSE(reducer.rebuild());
    const GradientStorage old = reducer.gradient(0);
    run_step(reducer, rank,
             rank == 0 ? std::vector<std::size_t>{0, 2, 1} : std::vector<std::size_t>{1, 2, 0});
    EXPECT_TRUE(reducer.rebuild());
    ASSERT_EQ(reducer.plan().size(), 3u);
    EXPECT_EQ(reducer.plan()[0].gradients, (std::vector<std::size_t>{0}));
    EXPECT_EQ(reducer.plan()[1].gradients, (std::vector<std::size_t>{2}));
    EXPECT_EQ(reducer.plan()[2].gradients, (std::vector<std::size_t>{1}));
    expect_mean(reducer, 2);
    // Views of the old storage may still be read.
    EXPECT_NE(old.view.data, reducer.gradient(0).view.data);
    EXPECT_EQ(*reinterpret_cast<const float*>(old.view.data), 5.0f);
    run_step(reducer, rank, {2, 1, 0});
    expect_mean(reducer, 2);
    EXPECT_FALSE(reducer.rebuild());
  });
}

TEST(Reducer, ThreadsMayMarkDifferentGradients) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    std::vector<GradientDescription> gradients;
    for (int i = 0; i < 64; ++i) gradients.push_back({std::to_string(i), DType::f32, 64});
    Reducer reducer(communicator, gradients, {.bucket_bytes = {512}});
    for (int step = 0; step < 20; ++step) {
      on_threads(4, [&](std::size_t t) {
        for (std::size_t i = t; i < 64; i += 4) {
          fill(reducer, i, static_cast<float>(rank * 10) + static_cast<float>(i));
          reducer.mark_ready(i);
        }
      });
      reducer.finalize();
      expect_mean(reducer, 2);
    }
  });
}

TEST(Reducer, MissingGradientsAreNamedOnAllRanksAndTheNextStepMayFollow) {
  run_ranks(4, [](Communicator& job, int job_rank) {
    const auto group = job.split({.color = job_rank == 0 ? std::nullopt : std::optional(0)});
    if (group == nullptr) return;
    const int rank = group->rank().value();
    Reducer reducer(*group, three_gradients(), small_buckets());
    const auto step = [&] {
      for (std::size_t i = 0; i < 3; ++i) fill(reducer, i, 1);
      reducer.mark_ready(2);
      if (rank == 2) {
        reducer.mark_ready(1);
        reducer.mark_ready(0);
      }
      reducer.finalize();
    };
    expect_contains(message_of<InvalidArgument>(step),
                    "2 parameters got no gradient on ranks 1, 2: a, b; used on rank 3. ");
    run_step(reducer, rank, {2, 1, 0});
    expect_mean(reducer, 3);
  });
}

TEST(Reducer, GradientsMarkedTwiceOrChangedAreNamedOnAllRanksAndTheNextStepMayFollow) {
  run_ranks(3, [](Communicator& communicator, int rank) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    const auto step = [&](bool changed) {
      if (changed && rank > 0) reducer.mark_changed(0);
      for (const std::size_t i : {2, 1, 0}) reducer.mark_ready(i);
      if (!changed && rank == 1) reducer.mark_ready(1);
      reducer.finalize();
    };
    expect_contains(message_of<InvalidArgument>([&] { step(false); }),
                    "1 parameter got a gradient a second time in one step on rank 1: b, after");
    expect_contains(message_of<InvalidArgument>([&] { step(true); }),
                    "static_graph was promised, but 1 parameter got more or fewer gradients than "
                    "in the first step on ranks 1, 2: a.");
    run_step(reducer, rank, {2, 1, 0});
    expect_mean(reducer, 3);
  });
}

TEST(Reducer, WithoutGradientsAStepIsAReport) {
  run_ranks(3, [](Communicator& communicator) {
    Reducer reducer(communicator, {});
    reducer.finalize();
    EXPECT_FALSE(reducer.requested(Reducer::Request::graph_changed));
    if (communicator.rank() == Rank(2)) reducer.request(Reducer::Request::graph_changed);
    reducer.finalize();
    EXPECT_TRUE(reducer.requested(Reducer::Request::graph_changed));
    EXPECT_FALSE(reducer.rebuild());
    EXPECT_EQ(reducer.step_count(), 2u);
    if (communicator.rank() == Rank(0)) reducer.set_epoch(1);
    expect_contains(message_of<Mismatch>([&] { reducer.finalize(); }), "has begun epoch 1");
  });
}

// The second reducer goes on like the first one, also when the first one forms other buckets later.
TEST(Reducer, BucketsAreRestored) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Reducer first(communicator, three_gradients(), small_buckets());
    Reducer second(communicator, three_gradients(), small_buckets());
    const auto order = [](int step) {
      return step < 6 ? std::vector<std::size_t>{1, 2, 0} : std::vector<std::size_t>{0, 1, 2};
    };
    for (int step = 0; step < 30; ++step) {
      run_step(first, rank, order(step));
      (void)first.rebuild();
      if (step == 3) {
        EXPECT_TRUE(second.restore(first.bucket_order()));
      }
      if (step < 4) continue;
      run_step(second, rank, order(step));
      expect_mean(second, 2);
      (void)second.rebuild();
      ASSERT_EQ(first.plan(), second.plan()) << "step " << step;
    }
    EXPECT_EQ(first.plan()[0].gradients.front(), 0u);
    reducer::BucketOrder wrong = first.bucket_order();
    wrong.gradients[0] = wrong.gradients[1];
    EXPECT_THROW(second.restore(wrong), InvalidArgument);
  });
}

TEST(Reducer, BucketsThatAreRestoredOnSomeRanksOnlyAreFoundOut) {
  run_ranks(2, [](Communicator& communicator) {
    const std::vector<GradientDescription> alike = {{"a", DType::f32, 9}, {"b", DType::f32, 9}};
    Reducer reducer(communicator, alike, {.bucket_bytes = {1}});
    reducer::BucketOrder order = reducer.bucket_order();
    std::swap(order.gradients[0], order.gradients[1]);
    EXPECT_EQ(communicator.rank() == Rank(1) && reducer.restore(order),
              communicator.rank() == Rank(1));
    expect_contains(message_of<Mismatch>([&] {
                      run_step(reducer, 0, {1, 0});
                    }),
                    "in step 1 rank 1 has formed other buckets of gradients than rank 0: load");
  });
}

TEST(Reducer, GradientsThatOnlySomeRanksHaveAreReducedWhereThatIsAllowed) {
  run_ranks(3, [](Communicator& communicator, int rank) {
    ReducerOptions options = small_buckets();
    options.find_unused = true;
    Reducer reducer(communicator, three_gradients(), options);
    for (int step = 0; step < 3; ++step) {
      // Only rank 1 has b. No rank has a: its value is not touched, although a mean would round it.
      fill(reducer, 0, 0.1f);
      fill(reducer, 1, rank == 1 ? 6.0f : 0.0f);
      fill(reducer, 2, static_cast<float>(rank));
      if (rank == 1) reducer.mark_ready(1);
      if (rank != 2) reducer.mark_ready(2);  // Rank 2 has computed no gradient.
      reducer.finalize();
      for (const float element : floats(reducer, 0)) ASSERT_EQ(element, 0.1f);
      for (const float element : floats(reducer, 1)) ASSERT_EQ(element, 2.0f);
      for (const float element : floats(reducer, 2)) ASSERT_EQ(element, 1.0f);
      EXPECT_FALSE(reducer.was_used(0));
      EXPECT_TRUE(reducer.was_used(1));
      EXPECT_TRUE(reducer.was_used(2));
      reducer.rebuild();
    }
  });
}

TEST(Reducer, FrozenGradientsKeepTheirValuesAndHoldNobodyUp) {
  run_ranks(3, [](Communicator& communicator, int rank) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    reducer.set_frozen(2, true);
    fill(reducer, 2, 0.1f);
    for (const std::size_t index : {1, 0}) {
      fill(reducer, index, static_cast<float>(rank));
      reducer.mark_ready(index);
    }
    EXPECT_THROW(reducer.mark_ready(2), InvalidArgument);
    reducer.finalize();
    for (const float element : floats(reducer, 2)) ASSERT_EQ(element, 0.1f);
    for (const float element : floats(reducer, 0)) ASSERT_EQ(element, 1.0f);
    reducer.set_frozen(2, false);
    run_step(reducer, rank, {2, 1, 0});
    expect_mean(reducer, 3);
  });
}

TEST(Reducer, FreezingOnSomeRanksOnlyIsNamedOnAll) {
  run_ranks(2, [](Communicator& communicator) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    const bool freezes = communicator.rank() == Rank(1);
    reducer.set_frozen(1, freezes);
    const auto step = [&] {
      for (const std::size_t index : {2, 1, 0}) {
        if (!reducer.is_frozen(index)) reducer.mark_ready(index);
      }
      reducer.finalize();
    };
    expect_contains(message_of<Mismatch>(step),
                    "1 parameter is frozen (requires_grad = false) on "
                    "rank 1 and not on the others: b.");
  });
}

TEST(Reducer, TwoOfThemInAnotherOrderAreFoundOutInTheSameStep) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Reducer first(communicator, three_gradients(), {.number = 1});
    Reducer second(communicator, three_gradients(), {.number = 2});
    run_step(first, rank, {2, 1, 0});
    run_step(second, rank, {2, 1, 0});
    const auto text = message_of<Mismatch>([&] {
      run_step(rank == 0 ? first : second, rank, {2, 1, 0});
    });
    expect_contains(text, "rank 0 has ended step 2 of model 1, rank 1 has ended step 2 of model 2");
    EXPECT_EQ(message_of<Error>([&] { (rank == 0 ? first : second).mark_ready(0); }), text);
  });
}

TEST(Reducer, ARankWithoutDataContributesZerosAndIsNoError) {
  run_ranks(2, [](Communicator& communicator) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    if (communicator.rank() == Rank(1)) {
      reducer.finalize_without_data();
    } else {
      run_step(reducer, 1, {2, 1, 0});
    }
    for (std::size_t i = 0; i < 3; ++i) {
      const float expected = (10 + static_cast<float>(i)) / 2;
      for (const float element : floats(reducer, i)) ASSERT_EQ(element, expected);
    }
  });
}

TEST(Reducer, ARankWithoutDataKeepsWhatNobodyComputes) {
  run_ranks(2, [](Communicator& communicator) {
    ReducerOptions options = small_buckets();
    options.find_unused = true;
    Reducer reducer(communicator, three_gradients(), options);
    reducer.set_frozen(2, true);
    for (const std::size_t i : {0, 1, 2}) fill(reducer, i, 0.1f);
    if (communicator.rank() == Rank(1)) {
      reducer.finalize_without_data();
    } else {
      reducer.mark_ready(0);
      reducer.finalize();
    }
    for (const float element : floats(reducer, 0)) ASSERT_EQ(element, 0.05f);
    for (const float element : floats(reducer, 1)) ASSERT_EQ(element, 0.1f) << "unused";
    for (const float element : floats(reducer, 2)) ASSERT_EQ(element, 0.1f) << "frozen";
  });
}

TEST(Reducer, ARankThatHasLeftIsSaidToHaveRunOutOfSteps) {
  run_ranks(2, [](Communicator& job) {
    const auto group = job.new_group({0, 1});  // The group ends when a rank leaves.
    Reducer reducer(*group, three_gradients(), small_buckets());
    const int rank = group->rank().value();
    run_step(reducer, rank, {2, 1, 0});
    (void)reducer.rebuild();
    if (rank == 1) return;
    expect_contains(message_of<PeerLost>([&] {
                      run_step(reducer, rank, {2, 1, 0});
                    }),
                    "it left training after step 1, and this rank waits in step 2. Ranks must run");
    EXPECT_THROW(reducer.set_frozen(0, true), PeerLost) << "in the middle of the step that failed";
    EXPECT_THROW(reducer.restore(reducer.bucket_order()), PeerLost);
  });
}

TEST(Reducer, RebuildFollowsWhenTheOrderChangesForGood) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    int rebuilds = 0;
    for (int step = 0; step < 40; ++step) {
      // One step in another order does not count; the second half of the steps does.
      const bool other = step >= 20 || step == 12;
      run_step(reducer, rank,
               other ? std::vector<std::size_t>{0, 1, 2} : std::vector<std::size_t>{1, 2, 0});
      if (reducer.rebuild()) ++rebuilds;
      expect_mean(reducer, 2);
      EXPECT_EQ(rebuilds, step < 21 ? 1 : 2) << "step " << step;
    }
    EXPECT_EQ(reducer.plan()[0].gradients.front(), 0u);
  });
}

TEST(Reducer, OneRankAsksAndAllLearnThatReplicasAreToBeCompared) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Reducer reducer(communicator, three_gradients());
    if (rank == 1) reducer.request(Reducer::Request::verification);
    run_step(reducer, rank, {2, 1, 0});
    EXPECT_TRUE(reducer.requested(Reducer::Request::verification));
    run_step(reducer, rank, {2, 1, 0});
    EXPECT_FALSE(reducer.requested(Reducer::Request::verification));
  });
}

TEST(Reducer, WhereOtherGradientsAreRequestedItJudgesTheseWhenItIsTold) {
  run_ranks(2, [](Communicator& communicator, int rank) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    if (rank == 1) reducer.request(Reducer::Request::other_gradients);
    reducer.mark_ready(2);
    reducer.mark_ready(1);
    if (rank == 0) reducer.mark_ready(0);
    EXPECT_NO_THROW(reducer.finalize());
    EXPECT_TRUE(reducer.requested(Reducer::Request::other_gradients));
    expect_contains(message_of<InvalidArgument>([&] { reducer.judge_gradients(); }),
                    "1 parameter got no gradient on rank 1: a; used on rank 0. ");
    run_step(reducer, rank, {2, 1, 0});
    expect_mean(reducer, 2);
    EXPECT_NO_THROW(reducer.judge_gradients());
  });
}

TEST(Reducer, AnExceptionThatDestroysItIsToldToTheOtherRanks) {
  run_ranks(2, [](Communicator& communicator) {
    const bool throws = communicator.rank() == Rank(1);
    const auto step = [&] {
      Reducer reducer(communicator, three_gradients(), small_buckets());
      reducer.mark_ready(0);  // The last gradient to be reduced: no bucket has left yet.
      if (throws) throw std::runtime_error("no more data");
      reducer.mark_ready(1);
      reducer.mark_ready(2);
      reducer.finalize();
    };
    if (throws) {
      EXPECT_EQ(message_of<std::runtime_error>(step), "no more data");
      return;
    }
    expect_contains(message_of<Aborted>(step),
                    "rank 1 aborted: an exception ended its step when 1 of 3 gradients");
  });
}

TEST(Reducer, StatisticsAddUp) {
  run_ranks(2, [](Communicator& communicator) {
    Reducer reducer(communicator, three_gradients(), small_buckets());
    reducer.mark_ready(2);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    reducer.mark_ready(0);
    reducer.mark_ready(1);
    reducer.finalize();
    const StepStatistics& step = reducer.last_step();
    EXPECT_EQ(step.ready_seconds[2], 0);
    EXPECT_GE(step.ready_seconds[1], step.ready_seconds[0]);
    EXPECT_GE(step.ready_seconds[1], 0.005);  // It fills a bucket; the other bucket is small.
    EXPECT_GE(step.backward_seconds, step.ready_seconds[1]);
    EXPECT_GE(step.communication_seconds, 0.005);
    EXPECT_GE(step.exposed_seconds, 0);
    EXPECT_LT(step.exposed_seconds, 0.5);
  });
}

// A hook whose first bucket takes 50 ms to start, while backward waits for it.
class SlowAtFirst : public PlainReduction {
 public:
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    if (bucket.index == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return PlainReduction::start(communicator, bucket);
  }
};

TEST(Reducer, WhatCommunicationTakesInsideBackwardIsExposed) {
  run_ranks(2, [](Communicator& communicator) {
    ReducerOptions options = small_buckets();
    options.hook = std::make_shared<SlowAtFirst>();
    Reducer reducer(communicator, three_gradients(), options);
    for (int step = 0; step < 2; ++step) {
      const TimePoint begin = Clock::now();
      reducer.mark_ready(2);
      const TimePoint marked = Clock::now();
      reducer.mark_ready(1);
      reducer.mark_ready(0);
      reducer.finalize();
      EXPECT_GE(marked - begin, std::chrono::milliseconds(50)) << "before finalize()";
      EXPECT_GE(reducer.last_step().exposed_seconds, 0.05);
      EXPECT_LE(reducer.last_step().exposed_seconds, seconds(Clock::now() - begin));
    }
  });
}

TEST(Reducer, RefusesWhatHasNoMeaning) {
  run_ranks(1, [](Communicator& communicator) {
    EXPECT_THROW(Reducer(communicator, three_gradients(), {.bucket_bytes = {}}), InvalidArgument);
    EXPECT_THROW(Reducer(communicator, {{"mask", DType::boolean, 4}}), InvalidArgument);
  });
}

}  // namespace
}  // namespace stretto
