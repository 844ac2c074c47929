// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// When steps are compressed, and what uncompressed steps do.

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/base/clock.h"
#include "stretto/base/log.h"
#include "stretto/base/rank_vector.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/expect_contains.h"
#include "tests/support/fake_environment.h"
#include "tests/support/gradients.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using testing::floats;

// The least time of an uncompressed bucket on a slow link, which is long compared to everything
// else in these tests.
constexpr std::chrono::milliseconds kDenseBucket(4);

// Records which buckets are started and finished in a step.
class RecordedCompression : public CompressedReduction {
 public:
  using CompressedReduction::CompressedReduction;
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    started.push_back(bucket.index);
    return CompressedReduction::start(communicator, bucket);
  }
  void finish(const FullBucket& bucket) override {
    finished.push_back(bucket.index);
    CompressedReduction::finish(bucket);
  }

  std::vector<std::size_t> started;
  std::vector<std::size_t> finished;
};

// Simulates a link so slow that uncompressed buckets take a while.
class CompressionOnSlowLink : public CompressedReduction {
 public:
  using CompressedReduction::CompressedReduction;
  Work start(Communicator& communicator, const FullBucket& bucket) override {
    if (bucket.index == 0) ++step_;
    Work work = CompressedReduction::start(communicator, bucket);
    // In a compressed step, last_step() is still the previous step.
    if (last_step().step == step_) std::this_thread::sleep_for(kDenseBucket);
    return work;
  }

 private:
  std::uint64_t step_ = 0;
};

using Indices = std::vector<std::size_t>;
const Indices kAll = {0, 1, 2};

// Three gradients with a bucket each; the last gradient is in the first bucket.
struct TrialTraining {
  TrialTraining(Communicator& communicator, const CompressionOptions& options,
                std::size_t count = 1 << 15)
      : rank(communicator.rank().value()),
        hook(std::make_shared<RecordedCompression>(options)),
        reducer(communicator,
                {{"a", DType::f32, count}, {"b", DType::f32, count}, {"c", DType::f32, count}},
                {.bucket_bytes = {1}, .find_unused = true, .hook = hook}) {}

  // Returns whether the step was compressed.
  bool step(const Indices& used = {2, 1, 0}) {
    hook->started.clear();
    hook->finished.clear();
    for (const std::size_t i : used) {
      std::ranges::fill(floats(reducer, i), static_cast<float>(rank + 1));
      reducer.mark_ready(i);
      finished_early = hook->finished;
    }
    reducer.finalize();
    return hook->last_step().compressed;
  }

  const int rank;
  const std::shared_ptr<RecordedCompression> hook;
  Reducer reducer;
  Indices finished_early;  // Buckets finished before finalize(), when the last gradient was ready.
};

TEST(CompressionTrial, ABucketThatIsNotCompressedIsFinishedEarlyAndLeftOut) {
  run_ranks(2, [](Communicator& communicator) {
    TrialTraining training(communicator, {.compression = Compression::never}, 2000);
    for (int step = 0; step < 2; ++step) {
      EXPECT_FALSE(training.step({2, 0}));
      EXPECT_EQ(training.hook->started, kAll);
    }
    for (int step = 0; step < 3; ++step) {
      EXPECT_FALSE(training.step({2, 0}));
      EXPECT_EQ(training.hook->started, (Indices{0, 2}));
      EXPECT_EQ(training.hook->last_step().step, static_cast<std::uint64_t>(step + 3));
    }
    EXPECT_FALSE(training.step({2, 1, 0}));
    EXPECT_EQ(training.hook->started, (Indices{0, 2, 1}));
    EXPECT_EQ(floats(training.reducer, 1)[7], 1.5f);
  });
  run_ranks(1, [](Communicator& communicator) {
    TrialTraining never(communicator, {.compression = Compression::never}, 2000);
    (void)never.step();
    EXPECT_EQ(never.finished_early, kAll);
    TrialTraining always(communicator, {}, 2000);
    (void)always.step();
    EXPECT_EQ(always.finished_early, Indices());
    EXPECT_EQ(always.hook->finished, kAll);
  });
}

// If a bucket were left out, the first compressed step would lack it.
TEST(CompressionTrial, DenseStepsLeaveNoBucketOut) {
  run_ranks(2, [](Communicator& communicator) {
    TrialTraining training(communicator, {.dense_steps = 4}, 2000);
    for (int step = 0; step < 6; ++step) {
      EXPECT_EQ(training.step({2, 0}), step >= 4);
      EXPECT_EQ(training.hook->started, kAll);
      EXPECT_EQ(training.finished_early, Indices());
    }
  });
}

// Records the decisions in the log, which are all of level info.
class DecisionLog {
 public:
  DecisionLog() {
    set_level("info");
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      if (line.find("encode+decode") != line.npos) lines.emplace_back(line);
    });
  }
  ~DecisionLog() {
    set_log_sink({});
    set_level("warning");
  }

  std::vector<std::string> lines;

 private:
  static void set_level(const std::string& level) {
    configure_log(FakeEnvironment({{"STRETTO_LOG", level}}), "stretto");
  }

  std::mutex mutex_;
};

// The buckets "c", "b" and "a", in this order. "b" is too small for a codec.
struct SlowTraining {
  SlowTraining(Communicator& communicator, const CompressionOptions& options)
      : hook(std::make_shared<CompressionOnSlowLink>(options)),
        reducer(communicator,
                {{"a", DType::f32, 2000}, {"b", DType::f32, 20}, {"c", DType::f32, 2000}},
                {.bucket_bytes = {1}, .hook = hook}) {}

  const CompressionStatistics& step() {
    for (const std::size_t i : {2, 1, 0}) {
      std::ranges::fill(floats(reducer, i), 1.0f);
      reducer.mark_ready(i);
    }
    reducer.finalize();
    return hook->last_step();
  }

  const std::shared_ptr<CompressionOnSlowLink> hook;
  Reducer reducer;
};

using Choices = std::vector<std::pair<bool, CompressionReason>>;

Choices choices_of(const CompressionStatistics& step) {
  Choices choices;
  for (const BucketCompression& each : step.choices) {
    choices.emplace_back(each.compressed, each.reason);
    EXPECT_EQ(each.codec_seconds > 0, each.compressed);
  }
  return choices;
}

// Formats as the log does, with three digits.
std::string milliseconds(double seconds) { return fmt::format("{:.3g}", seconds * 1e3); }

TEST(CompressionTrial, WhatItSavesOnASlowLinkIsMeasuredAndSaid) {
  using enum CompressionReason;
  const DecisionLog log;
  RankVector<CompressionMeasurement> found(2);
  run_ranks(2, [&](Communicator& communicator, int rank) {
    SlowTraining training(communicator, {.compression = Compression::automatic});
    for (int step = 0; step < 16; ++step) {
      const CompressionStatistics& last = training.step();
      const bool is_compressed = step / 4 % 2 == 1;
      const Choices expected = {
          {is_compressed, on_trial}, {false, too_small}, {is_compressed, on_trial}};
      ASSERT_EQ(choices_of(last), expected) << step;
      ASSERT_FALSE(last.measured) << step;
    }
    const CompressionStatistics& last = training.step();
    const Choices expected = {{true, measured}, {false, too_small}, {true, measured}};
    EXPECT_EQ(choices_of(last), expected);
    ASSERT_TRUE(last.measured);
    found[rank] = *last.measured;
  });
  const auto& [dense, codec, other, saved] = found[0];
  EXPECT_GE(dense, 3 * seconds(kDenseBucket));
  EXPECT_GT(codec, 0);
  EXPECT_GT(saved, 0);
  EXPECT_NEAR(other, std::max(0.0, dense - codec - saved), 1e-9) << "medians need not add up";
  EXPECT_EQ(saved, found[1].saved_seconds);
  ASSERT_EQ(log.lines.size(), 1u);
  expect_contains(
      log.lines[0],
      fmt::format("top_k(0.01): encode+decode {} ms, rest {} ms (dense {}) -> faster by {} ms; "
                  "enabled for buckets 0, 2 (",
                  milliseconds(codec), milliseconds(other), milliseconds(dense),
                  milliseconds(saved)));
}

// A rank alone communicates nothing in uncompressed steps, and there is no model of its links.
TEST(CompressionTrial, WhatItWouldLoseIsSaidAsFarAsItIsMeasured) {
  const DecisionLog log;
  CompressionMeasurement measured;
  run_ranks(1, [&](Communicator& communicator) {
    TrialTraining training(communicator, {.compression = Compression::automatic});
    for (int step = 0; step < 7; ++step) (void)training.step();
    const CompressionStatistics& last = training.hook->last_step();
    EXPECT_EQ(choices_of(last), Choices(3, {false, CompressionReason::predicted}));
    ASSERT_TRUE(last.measured);
    measured = *last.measured;
    (void)training.step({2, 0});
    (void)training.step({2, 0});
    (void)training.step({2, 0});
    EXPECT_EQ(last.choices[1].reason, CompressionReason::left_out);
    EXPECT_EQ(last.choices[2].reason, CompressionReason::predicted);
  });
  EXPECT_EQ(measured.other_seconds, 0);
  EXPECT_LT(measured.saved_seconds, 0);
  EXPECT_NEAR(measured.saved_seconds, measured.dense_seconds - measured.codec_seconds, 1e-9);
  ASSERT_EQ(log.lines.size(), 1u);
  expect_contains(
      log.lines[0],
      fmt::format("top_k(0.01): encode+decode {} ms, messages 0 ms as predicted (dense {}) "
                  "-> slower by {} ms or more; disabled for buckets 0-2",
                  milliseconds(measured.codec_seconds), milliseconds(measured.dense_seconds),
                  milliseconds(-measured.saved_seconds)));
}

TEST(CompressionTrial, WithoutACodecThereIsNothingToTry) {
  const DecisionLog log;
  run_ranks(1, [](Communicator& communicator) {
    TrialTraining training(communicator,
                           {.min_elements = 3000, .compression = Compression::automatic}, 2000);
    for (int step = 0; step < 20; ++step) {
      EXPECT_FALSE(training.step()) << step;
      EXPECT_EQ(training.finished_early, kAll) << step;
      EXPECT_EQ(choices_of(training.hook->last_step()),
                Choices(3, {false, CompressionReason::too_small}));
      EXPECT_FALSE(training.hook->last_step().measured);
    }
  });
  EXPECT_EQ(log.lines, std::vector<std::string>());
}

// This happens when a new model shares the hook with a model that was destroyed.
TEST(CompressionTrial, AHookThatIsAttachedAgainMayCompressAgain) {
  run_ranks(1, [](Communicator& communicator) {
    TrialTraining training(communicator,
                           {.min_elements = 3000, .compression = Compression::automatic}, 2000);
    (void)training.step();
    EXPECT_TRUE(training.hook->finishes_early());
    const GradientDescription description{"w", DType::f32, 4000};
    training.hook->attach(communicator, {&description, 1});
    EXPECT_FALSE(training.hook->finishes_early());
  });
}

TEST(CompressionTrial, WithoutATrialAStepSaysWhyToo) {
  using enum CompressionReason;
  run_ranks(1, [](Communicator& communicator) {
    const auto first_choice = [&](const CompressionOptions& options) {
      TrialTraining training(communicator, options, 2000);
      (void)training.step();
      EXPECT_FALSE(training.hook->last_step().measured);
      return choices_of(training.hook->last_step()).front();
    };
    using Choice = Choices::value_type;
    EXPECT_EQ(first_choice({}), Choice(true, always));
    EXPECT_EQ(first_choice({.compression = Compression::never}), Choice(false, never));
    EXPECT_EQ(first_choice({.dense_steps = 1}), Choice(false, dense_steps));
    EXPECT_EQ(first_choice({.min_elements = 2001}), Choice(false, too_small));
    EXPECT_EQ(first_choice({.codec = dense()}), Choice(false, no_codec));
    EXPECT_EQ(
        first_choice({.codec = top_k({.warm_up_steps = 1}), .compression = Compression::automatic}),
        Choice(false, warm_up));
  });
  EXPECT_EQ(name(left_out), "left_out");
}

// In the steps of the trial and after it, all ranks take the same decisions, and one line of the
// log tells them.
TEST(CompressionTrial, SwitchesAllRanksInTheSameStep) {
  const DecisionLog log;
  RankVector<std::vector<bool>> compressed_steps(2);
  run_ranks(2, [&](Communicator& communicator) {
    TrialTraining training(communicator, {.compression = Compression::automatic}, 2000);
    for (int step = 0; step < 20; ++step) {
      compressed_steps[training.rank].push_back(training.step());
    }
  });
  EXPECT_EQ(compressed_steps[0], compressed_steps[1]);
  const std::vector<bool> trial(compressed_steps[0].begin(), compressed_steps[0].begin() + 6);
  EXPECT_EQ(trial, (std::vector<bool>{false, false, false, false, true, true}));
  ASSERT_EQ(log.lines.size(), 1u);
  expect_contains(log.lines[0], compressed_steps[0].back() ? "enabled for buckets 0-2"
                                                           : "disabled for buckets 0-2");
}

// The cost of messages in a warm-up says nothing about later messages.
TEST(CompressionTrial, BeginsAfterTheWarmUp) {
  run_ranks(1, [](Communicator& communicator) {
    TrialTraining training(communicator,
                           {.codec = top_k({.warm_up_steps = 10}),
                            .rules = {{"b", top_k({.warm_up_steps = 20, .exact = false})}},
                            .compression = Compression::automatic});
    for (int step = 0; step < 24; ++step) EXPECT_FALSE(training.step()) << step;
    for (int step = 24; step < 26; ++step) EXPECT_TRUE(training.step()) << step;
    EXPECT_EQ(training.hook->last_step().sent_values, 3u * 328);
  });
}

// The first trial has found that compression does not pay, so the period until the next trial is
// twice as long. The trial took the place of the period's first steps.
TEST(CompressionTrial, StepsThatItSwitchesOffFinishEarlyAndLeaveBucketsOutUntilTheNextTrial) {
  constexpr int kOff = 6, kNext = kOff + 2 * 2048 - 16;
  run_ranks(1, [](Communicator& communicator) {
    TrialTraining training(communicator, {.compression = Compression::automatic});
    const Indices used = {2, 0}, both = {0, 2};
    for (int step = 0; step < kNext + 10; ++step) {
      const bool is_compressed = training.step(used);
      const int in_trial = step < kNext ? step : step - kNext;
      const bool is_first = step < kNext;
      ASSERT_EQ(is_compressed, in_trial == 4 || in_trial == 5) << step;
      // The beginning and the end of a trial take effect on buckets one step later.
      const bool leaves_out = in_trial > kOff || (in_trial == 0 && !is_first);
      ASSERT_EQ(training.hook->started, leaves_out ? both : kAll) << step;
      ASSERT_EQ(training.hook->finished, training.hook->started) << step;
      const bool is_early = !is_compressed && in_trial != 0;
      ASSERT_EQ(training.finished_early.empty(), !is_early) << step;
    }
  });
}

}  // namespace
}  // namespace stretto
