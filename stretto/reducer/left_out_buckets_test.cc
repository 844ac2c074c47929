// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/reducer/reducer.h"
#include "stretto/reducer/timeline.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/gradients.h"
#include "tests/support/run_ranks.h"

// Buckets that no rank uses are not reduced, until a rank uses one again.
namespace stretto {
namespace {

using Indices = std::vector<std::size_t>;

class RecordedStarts : public PlainReduction {
 public:
  explicit RecordedStarts(bool early) : early_(early) {}
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    started.push_back(bucket.index);
    return PlainReduction::start(communicator, bucket);
  }
  bool finishes_early() const override { return early_; }
  Indices started;

 private:
  const bool early_;
};

// Three gradients with a bucket each; the last gradient is in the first bucket.
class Training {
 public:
  explicit Training(Communicator& communicator, bool early = true)
      : hook(std::make_shared<RecordedStarts>(early)),
        reducer(communicator, {{"a", DType::f32, 8}, {"b", DType::f32, 8}, {"c", DType::f32, 8}},
                {.bucket_bytes = {32}, .find_unused = true, .hook = hook}) {}

  // Runs a step in which this rank computes gradients `used` and fills them with `value`; its other
  // gradients keep 0.1 or 0.
  Indices step(const Indices& used, float value = 1) {
    hook->started.clear();
    for (const std::size_t i : {2, 1, 0}) fill(i, i == 1 && !reducer.is_frozen(1) ? 0 : 0.1f);
    for (const std::size_t i : used) {
      fill(i, value);
      reducer.mark_ready(i);
    }
    reducer.finalize();
    return hook->started;
  }
  void fill(std::size_t index, float value) {
    for (float& element : testing::floats(reducer, index)) element = value;
  }
  void expect(std::size_t index, float value) {
    for (const float element : testing::floats(reducer, index)) ASSERT_EQ(element, value) << index;
  }

  std::shared_ptr<RecordedStarts> hook;
  Reducer reducer;
};

const Indices kAll = {0, 1, 2};

TEST(LeftOutBuckets, OneThatARankDoesNotUseComesLastAndHoldsUpNoOther) {
  run_ranks(2, [](Communicator& communicator) {
    Training training(communicator);
    const bool uses = communicator.rank() == Rank(0);
    for (int step = 0; step < 3; ++step) {
      training.step(uses ? Indices{2, 1, 0} : Indices{1, 0});
      training.reducer.rebuild();
    }
    EXPECT_EQ(training.reducer.plan().back().gradients, (Indices{2}));
    training.hook->started.clear();
    if (uses) training.reducer.mark_ready(2);
    for (const std::size_t i : {1, 0}) training.reducer.mark_ready(i);
    EXPECT_EQ(training.hook->started.size(), uses ? 3u : 2u) << "while backward runs";
    training.reducer.finalize();
  });
}

TEST(LeftOutBuckets, OneThatNobodyUsesIsReducedWhenARankUsesItAgain) {
  run_ranks(3, [](Communicator& communicator) {
    Training training(communicator);
    const bool uses = communicator.rank() == Rank(1);
    for (int step = 0; step < 2; ++step) EXPECT_EQ(training.step({2, 0}), kAll);
    for (int step = 0; step < 5; ++step) {
      EXPECT_EQ(training.step({2, 0}), (Indices{0, 2}));
      EXPECT_FALSE(training.reducer.was_used(1));
      training.expect(0, 1);
      training.expect(1, 0);
      training.expect(2, 1);
    }
    EXPECT_EQ(training.reducer.last_step().bytes, 2 * 64u);
    EXPECT_EQ(training.reducer.last_step().launch_seconds[1], -1);
    EXPECT_EQ(training.reducer.last_step().end_seconds[1], -1);

    EXPECT_EQ(training.step(uses ? Indices{2, 1, 0} : Indices{2, 0}, 6), (Indices{0, 2, 1}));
    EXPECT_TRUE(training.reducer.was_used(1));
    training.expect(1, 2);  // The other rank has contributed zeros.
    const StepStatistics& step = training.reducer.last_step();
    EXPECT_GE(step.launch_seconds[1], step.end_seconds[2]) << "after the others";
    EXPECT_GE(step.communication_seconds, step.end_seconds[1] - step.launch_seconds[0] - 1e-9);
  });
}

TEST(LeftOutBuckets, OneThatIsUsedNowAndThenIsLeftOutLaterAndLater) {
  run_ranks(2, [](Communicator& communicator) {
    Training training(communicator);
    std::vector<int> steps_before_left_out;
    for (int round = 0; round < 3; ++round) {
      int steps = 0;
      while (training.step({2, 0}) == kAll) ++steps;
      steps_before_left_out.push_back(steps);
      EXPECT_EQ(training.step({2, 1, 0}), (Indices{0, 2, 1}));
      training.expect(1, 1);
      EXPECT_EQ(training.step({2, 1, 0}), kAll);
    }
    EXPECT_EQ(steps_before_left_out, (std::vector<int>{2, 4, 8}));
  });
}

TEST(LeftOutBuckets, FrozenGradientsAreNotSent) {
  run_ranks(2, [](Communicator& communicator) {
    Training training(communicator);
    training.reducer.set_frozen(2, true);
    for (int step = 0; step < 2; ++step) EXPECT_EQ(training.step({1, 0}), kAll);
    for (int step = 0; step < 2; ++step) EXPECT_EQ(training.step({1, 0}), (Indices{1, 2}));
    training.expect(2, 0.1f);
    training.reducer.set_frozen(2, false);
    EXPECT_EQ(training.step({2, 1, 0}), (Indices{1, 2, 0}));
    training.expect(2, 1);
    EXPECT_EQ(training.step({2, 1, 0}), kAll);
  });
}

TEST(LeftOutBuckets, ARankWithoutDataGoesAlong) {
  run_ranks(2, [](Communicator& communicator) {
    Training training(communicator);
    for (int step = 0; step < 3; ++step) (void)training.step({2, 0});
    if (communicator.rank() == Rank(0)) {
      EXPECT_EQ(training.step({2, 1, 0}, 4), (Indices{0, 2, 1}));
      for (std::size_t i = 0; i < 3; ++i) training.expect(i, 2);
    } else {
      training.reducer.finalize_without_data();
    }
  });
}

TEST(LeftOutBuckets, AllMayBe) {
  run_ranks(2, [](Communicator& communicator) {
    Training training(communicator);
    for (int step = 0; step < 2; ++step) EXPECT_EQ(training.step({}), kAll);
    EXPECT_EQ(training.step({}), Indices());
    EXPECT_EQ(training.reducer.last_step().bytes, 0u);
    EXPECT_EQ(training.reducer.last_step().communication_seconds, 0);
    Timeline timeline(communicator.rank());
    timeline.add(training.reducer.last_step());
    expect_lacks(timeline.json(), "bucket 0");
    EXPECT_EQ(training.step({2, 1, 0}), kAll);
  });
}

TEST(LeftOutBuckets, ARankWithoutDataNeedNotKnowWhatOthersHaveUnfrozen) {
  run_ranks(2, [](Communicator& communicator) {
    Training training(communicator);
    training.reducer.set_frozen(2, true);
    training.step({1, 0});
    if (communicator.rank() == Rank(0)) {
      training.reducer.set_frozen(2, false);
      training.step(kAll, 4);
    } else {
      training.reducer.finalize_without_data();
    }
    for (std::size_t i = 0; i < 3; ++i) training.expect(i, 2);
  });
}

// Rank 0 has no data. Both ranks that have data have frozen b.
TEST(LeftOutBuckets, WhatIsFrozenAlikeIsNotNamedWhereARankHasNoData) {
  run_ranks(3, [](Communicator& communicator, int rank) {
    Training training(communicator);
    training.reducer.set_frozen(1, true);
    if (rank == 1) training.reducer.set_frozen(2, true);
    const auto step = [&] {
      if (rank == 0) return training.reducer.finalize_without_data();
      training.step(rank == 1 ? Indices{0} : Indices{2, 0}, 1);
    };
    expect_contains(testing::message_of<Mismatch>(step),
                    "is frozen (requires_grad = false) on rank 1 and not on the others: c. Fix: ");
  });
}

TEST(LeftOutBuckets, AHookThatNeedsAllBucketsSeesThem) {
  run_ranks(2, [](Communicator& communicator) {
    Training training(communicator, /*early=*/false);
    for (int step = 0; step < 6; ++step) EXPECT_EQ(training.step({2, 0}), kAll);
  });
}

}  // namespace
}  // namespace stretto
