// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/error.h"
#include "stretto/base/log_sink.h"
#include "stretto/base/rank_vector.h"
#include "stretto/reducer/compressed_all_reduce.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/gradients.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

// What CompressionOptions do to gradients before they are encoded, shown on a few elements each.

using testing::compressing;
using testing::copy_of;
using testing::floats;
using testing::message_of;
using Floats = std::vector<float>;

// Reduces one gradient, step by step, and returns the sum of all ranks.
class Steps {
 public:
  Steps(Communicator& communicator, const CompressionOptions& options, std::size_t count)
      : hook_(compressing(options)),
        reducer_(communicator, {{.name = "x", .count = count}},
                 {.op = ReduceOp::sum, .hook = hook_}) {}

  Floats sum_of(const Floats& own) {
    auto* const values = reinterpret_cast<float*>(reducer_.gradient_bytes(0).data());
    std::ranges::copy(own, values);
    reducer_.mark_ready(0);
    reducer_.finalize();
    return {values, values + own.size()};
  }
  Floats residual() const { return copy_of(hook_->residual("x")); }

 private:
  const std::shared_ptr<CompressedReduction> hook_;
  Reducer reducer_;
};

// One rank uses a codec that sends every other element.
TEST(CompressionOptions, MomentumIsAddedBeforeAndBeginsAnewWhereSent) {
  for (const bool masked : {true, false}) {
    run_ranks(1, [&](Communicator& communicator) {
      CompressionOptions options{
          .codec = top_k({.density = 0.5}), .min_elements = 1, .momentum = 0.5f};
      if (masked) options.mask_momentum = true;
      Steps steps(communicator, options, 2);
      EXPECT_EQ(steps.sum_of({4, 1}), (Floats{4, 0}));
      // The second element kept 1, to which 1 + 0.5 was added.
      EXPECT_EQ(steps.sum_of({0, 1}), (Floats{0, 2.5f}));
      // The momentum of sent elements is cleared, or goes on: 4 / 4 + 4 / 2, and 1.5 / 2.
      EXPECT_EQ(steps.sum_of({0, 0}), masked ? (Floats{0, 0}) : (Floats{3, 0}));
    });
  }
}

TEST(CompressionOptions, DenseStepsGoOnWithTheSameMomentum) {
  run_ranks(1, [&](Communicator& communicator) {
    Steps steps(communicator,
                {.min_elements = 1, .momentum = 0.5f, .compression = Compression::never}, 1);
    EXPECT_EQ(steps.sum_of({4}), (Floats{4}));
    EXPECT_EQ(steps.sum_of({0}), (Floats{2}));
    EXPECT_EQ(steps.sum_of({0}), (Floats{1}));
  });
}

TEST(CompressionOptions, ClipsWhatOneRankAdds) {
  run_ranks(4, [](Communicator& communicator) {
    constexpr std::size_t kCount = 19;  // A few more than are squared at a time.
    Steps steps(communicator, {.codec = top_k({.density = 1}), .min_elements = 1, .clip_norm = 10},
                kCount);
    const bool is_great = communicator.rank() == Rank(0);
    Floats own(kCount);
    own[5] = is_great ? 30 : 0.5f;
    own[18] = is_great ? 40 : 0;
    const Floats sum = steps.sum_of(own);
    EXPECT_FLOAT_EQ(sum[5], 3 + 1.5f);
    EXPECT_FLOAT_EQ(sum[18], 4);
  });
}

TEST(CompressionOptions, MomentumDoesNotKeepNaN) {
  run_ranks(2, [](Communicator& communicator) {
    Steps steps(communicator,
                {.codec = top_k({.density = 0.5}), .min_elements = 1, .momentum = 0.9f}, 2);
    EXPECT_TRUE(std::isnan(steps.sum_of({std::numeric_limits<float>::quiet_NaN(), 1})[0]));
    for (int step = 0; step < 3; ++step) {
      for (const float value : steps.sum_of({1, 1})) EXPECT_TRUE(std::isfinite(value));
    }
  });
}

// Options that contradict each other, or have no effect.

// Returns what attaching `gradients` writes into the log.
std::string warning_of(const std::shared_ptr<CompressedReduction>& hook,
                       const std::vector<GradientDescription>& gradients) {
  std::string lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines += line; });
  run_ranks(1, [&](Communicator& communicator) { hook->attach(communicator, gradients); });
  set_log_sink({});
  return lines;
}

std::string warning_of(CompressionOptions options,
                       const std::vector<GradientDescription>& gradients) {
  return warning_of(compressing(std::move(options)), gradients);
}

TEST(CompressionOptions, WhatHasNoEffectIsSaid) {
  const std::vector<GradientDescription> model = {{"head.weight", DType::f32, 2000},
                                                  {"head.scale", DType::f64, 2000}};
  EXPECT_EQ(warning_of({.rules = {{"head.*", int8()}}}, model), "");
  expect_contains(warning_of({.rules = {{"*.head.*", int8()}}}, model),
                  "the rule that compresses '*.head.*' by int8 fits no gradient's name");
  expect_contains(warning_of({.codec = int8()}, {{"w", DType::bf16, 2000}}),
                  "int8 compresses nothing: codecs are for gradients of f32, and none is");
}

// Otherwise both would be added to one residual.
TEST(CompressionOptions, TwoGradientsOfOneNameAreRefused) {
  run_ranks(2, [](Communicator& communicator) {
    const std::vector<GradientDescription> model = {{"w", DType::f32, 2000}, {"w", DType::f32, 9}};
    const auto compressed = compressing();
    expect_contains(
        message_of<InvalidArgument>([&] { Reducer(communicator, model, {.hook = compressed}); }),
        "two gradients are named 'w'");
    EXPECT_NO_THROW(Reducer(communicator, model, {}));
  });
}

TEST(CompressionOptions, AStateOfAnotherModelIsRefused) {
  run_ranks(2, [](Communicator& communicator) {
    const auto reducer_of = [&](const std::vector<std::string>& names,
                                const std::shared_ptr<CompressedReduction>& hook) {
      std::vector<GradientDescription> gradients;
      for (const std::string& name : names) gradients.push_back({.name = name, .count = 2000});
      return std::make_unique<Reducer>(communicator, gradients, ReducerOptions{.hook = hook});
    };
    const auto saved = compressing();
    (void)reducer_of({"head", "tail"}, saved);
    const auto hook = compressing();
    hook->load(saved->save());
    expect_contains(message_of<InvalidArgument>([&] { (void)reducer_of({"body"}, hook); }),
                    "is of another model: of 'head' for one, and there is no such gradient");
  });
}

// A model whose head was replaced keeps the residuals of the rest.
TEST(CompressionOptions, WhatAStateHasOfOtherGradientsIsSaidToBeLost) {
  std::vector<std::byte> state;
  run_ranks(1, [&](Communicator& communicator) {
    const std::vector<GradientDescription> model = {{.name = "head", .count = 2000},
                                                    {.name = "tail", .count = 2000}};
    CompressedReduction saved;
    saved.attach(communicator, model);
    state = saved.save();
  });
  const auto hook = compressing();
  hook->load(state);
  expect_contains(
      warning_of(hook, {{.name = "body", .count = 2000}, {.name = "tail", .count = 2000}}),
      "residuals of 1 gradients that this model does not have, and they are lost: of "
      "'head' for one");
  EXPECT_EQ(hook->residual("tail").size(), 2000u);
}

// Each * could match any of the letters, so trying all combinations would take for ever.
TEST(CompressionOptions, PatternsMayHaveManyStars) {
  std::string many, letters(200, 'a');
  for (int star = 0; star < 40; ++star) many += "*a";
  const auto is_said = [&](const std::string& pattern, const std::string& name) {
    return !warning_of({.rules = {{pattern, int8()}}}, {{name, DType::f32, 2000}}).empty();
  };
  EXPECT_FALSE(is_said(many, letters));
  EXPECT_FALSE(is_said(many + "**b", letters + "b"));
  EXPECT_TRUE(is_said(many + "*b", letters));
  EXPECT_TRUE(is_said(many, letters + "b"));
  EXPECT_FALSE(is_said("a*bc*bd", "abbcbcbd"));
  EXPECT_TRUE(is_said("a*bc*cbd", "abcbd")) << "no letter counts twice";
}

// An outer hook passes on f32 values made of f64, and the inner hook was not told.
TEST(CompressionOptions, GradientsThatWereMadeFloatsAreRefused) {
  run_ranks(1, [](Communicator& communicator) {
    CompressedReduction hook;
    const GradientDescription description{"w", DType::f64, 2000};
    hook.attach(communicator, {&description, 1});
    Floats data(2000, 1.0f);
    const std::size_t index = 0;
    const View view = view_of(std::span(data));
    expect_contains(message_of<InvalidArgument>([&] {
                      (void)hook.start(
                          communicator,
                          {.view = view, .gradients = {&index, 1}, .gradient_views = {&view, 1}});
                    }),
                    "gets f32 made of them");
  });
}

// What becomes of infinity and NaN in compressed gradients.

constexpr CompressedExchange kEveryExchange[] = {
    CompressedExchange::gather, CompressedExchange::divide, CompressedExchange::combine};

void expect_nan_is_seen(NonFinite policy) {
  for (const CompressedExchange exchange : kEveryExchange) {
    run_ranks(2, [&](Communicator& communicator) {
      Reducer reducer(communicator, {{"w", DType::f32, 2000}},
                      {.hook = compressing({.non_finite = policy, .exchange = exchange})});
      for (float& value : floats(reducer, 0)) value = 1;
      if (communicator.rank() == Rank(1)) {
        floats(reducer, 0)[77] = std::numeric_limits<float>::quiet_NaN();
      }
      reducer.mark_ready(0);
      reducer.finalize();
      EXPECT_EQ(std::isnan(floats(reducer, 0)[77]), policy == NonFinite::send);
    });
  }
}

TEST(NonFinite, NaNIsSeenByAllOrByNone) {
  for (const NonFinite policy : {NonFinite::send, NonFinite::zero}) expect_nan_is_seen(policy);
}

// Returns the sum and the residual of each step.
std::vector<Floats> results_of(const CompressionOptions& options,
                               const std::vector<Floats>& gradients) {
  std::vector<Floats> results;
  run_ranks(1, [&](Communicator& communicator) {
    Steps steps(communicator, options, gradients[0].size());
    for (const Floats& gradient : gradients) {
      results.push_back(steps.sum_of(gradient));
      results.push_back(steps.residual());
    }
  });
  return results;
}

// Infinity and NaN also count as zero for the norm that is clipped, for momentum and for residuals.
TEST(NonFinite, WhatCountsAsZeroLeavesWhatZeroLeaves) {
  constexpr NonFinite kZero = NonFinite::zero;
  const auto half = top_k({.density = 0.5});
  const std::vector<CompressionOptions> each = {
      {.codec = half, .min_elements = 1, .non_finite = kZero, .clip_norm = 1},
      {.codec = half, .min_elements = 1, .non_finite = kZero, .momentum = 0.5f},
      {.codec = half, .min_elements = 1, .non_finite = kZero},
      {.codec = power_sgd({.rank = 1}), .min_elements = 1, .non_finite = kZero},
      {.non_finite = kZero, .momentum = 0.5f, .compression = Compression::never},
  };
  for (const CompressionOptions& options : each) {
    const auto with = [&](float value) {
      Floats first(16), second(16);
      for (std::size_t i = 0; i < 16; ++i) first[i] = 1 + static_cast<float>(i * i % 7);
      second[0] = 1000;
      second[7] = value;  // The least value of `first`: half of its values are not sent.
      return results_of(options, {first, second, Floats(16)});
    };
    const std::vector<Floats> expected = with(0);
    EXPECT_EQ(with(std::numeric_limits<float>::infinity()), expected);
    EXPECT_EQ(with(std::numeric_limits<float>::quiet_NaN()), expected);
  }
}

// The policies also hold where no codec is used: for small gradients alone in a bucket, and in
// steps without compression.
TEST(NonFinite, PoliciesHoldForWhatTravelsAsItIs) {
  for (const Compression compression : {Compression::always, Compression::never}) {
    for (const NonFinite policy : {NonFinite::send, NonFinite::stop, NonFinite::zero}) {
      run_ranks(3, [&](Communicator& communicator) {
        const std::size_t count = compression == Compression::always ? 100 : 2000;
        Reducer reducer(communicator, {{"v", DType::f32, count}, {"w", DType::f32, count}},
                        {.op = ReduceOp::sum,
                         .bucket_bytes = {4},
                         .hook = compressing({.non_finite = policy, .compression = compression})});
        for (const std::size_t i : {0, 1}) std::ranges::fill(floats(reducer, i), 1.0f);
        if (communicator.rank() == Rank(2)) {
          floats(reducer, 0)[7] = std::numeric_limits<float>::infinity();
        }
        for (const std::size_t i : {1, 0}) reducer.mark_ready(i);
        const std::string text = message_of<InvalidArgument>([&] { reducer.finalize(); });
        if (policy == NonFinite::stop) {
          EXPECT_EQ(text,
                    "gradient v, in step 1: what all ranks have added up holds "
                    "infinity or NaN, and NonFinite::stop is set");
          return;
        }
        EXPECT_EQ(text, "");
        EXPECT_EQ(std::isfinite(floats(reducer, 0)[7]), policy == NonFinite::zero);
        if (policy == NonFinite::zero) {
          EXPECT_EQ(floats(reducer, 0)[7], 2.0f);
        }
        EXPECT_EQ(floats(reducer, 1)[7], 3.0f);
      });
    }
  }
}

// For vectors, other calls may follow one that was stopped: their residuals and right factors stay
// as they were.
TEST(NonFinite, ACallThatIsStoppedIsAsIfItHadNotBeen) {
  const auto half = top_k({.density = 0.5});
  std::vector<CompressedAllReduceOptions> each = {{.codec = power_sgd({.rank = 1})}};
  for (const auto exchange : kEveryExchange) each.push_back({.codec = half, .exchange = exchange});
  for (const CompressedAllReduceOptions& given : each) {
    run_ranks(2, [&](Communicator& communicator, int rank) {
      Floats sums[2];
      for (const bool stops : {false, true}) {
        CompressionState state;
        CompressedAllReduceOptions options = given;
        options.state = &state;
        options.name = "x";
        options.non_finite = NonFinite::stop;
        Floats data(16);
        for (std::size_t i = 0; i < 16; ++i) data[i] = 1 + static_cast<float>(i * i % 7);
        all_reduce(communicator, data, options);
        const Floats before = copy_of(state.residual("x"));
        if (stops) {
          for (std::size_t i = 0; i < 16; ++i) data[i] = static_cast<float>(i);
          if (rank == 1) data[0] = std::numeric_limits<float>::quiet_NaN();
          EXPECT_THROW(all_reduce(communicator, data, options), InvalidArgument);
          EXPECT_EQ(copy_of(state.residual("x")), before);
        }
        std::ranges::fill(data, 0.0f);
        all_reduce(communicator, data, options);
        sums[stops ? 1 : 0] = data;
      }
      EXPECT_EQ(sums[1], sums[0]);
    });
  }
}

// Returns the error when ranks `wrong` have `value` in element `place` of a gradient, which is
// divided between ranks, or has one owner if it is small.
std::string stop_text(int ranks, const std::vector<int>& wrong, std::size_t count,
                      std::size_t place, CompressedExchange exchange,
                      float value = std::numeric_limits<float>::quiet_NaN()) {
  RankVector<std::string> texts(ranks);
  run_ranks(ranks, [&](Communicator& communicator, int rank) {
    Reducer reducer(communicator, {{"v", DType::f32, 3000}, {"w", DType::f32, count}},
                    {.hook = compressing({.codec = int8(),
                                          .min_elements = 1,
                                          .non_finite = NonFinite::stop,
                                          .exchange = exchange})});
    if (std::ranges::find(wrong, rank) != wrong.end()) floats(reducer, 1)[place] = value;
    for (const std::size_t i : {1, 0}) reducer.mark_ready(i);
    texts[rank] = message_of<InvalidArgument>([&] { reducer.finalize(); });
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]) << "on all ranks";
  return texts[0];
}

TEST(NonFinite, WhatStopsIsTheRankWithTheNaNWhoeverAddsUp) {
  const auto text_of = [](int rank) {
    return "gradient w of rank " + std::to_string(rank) +
           ", in step 1: the gradient holds infinity or NaN, and NonFinite::stop is set";
  };
  for (const CompressedExchange exchange : kEveryExchange) {
    for (const int ranks : {2, 3}) {
      for (int wrong = 0; wrong < ranks; ++wrong) {
        for (const std::size_t place : {0, 1500, 2999}) {
          EXPECT_EQ(stop_text(ranks, {wrong}, 3000, place, exchange), text_of(wrong));
        }
        EXPECT_EQ(stop_text(ranks, {wrong}, 10, 9, exchange), text_of(wrong));
      }
    }
    EXPECT_EQ(stop_text(3, {2, 1}, 3000, 700, exchange), text_of(1)) << "the first of several";
  }
}

// No rank's gradient has infinity: the sum overflows. If one rank adds it up for all, that rank
// finds it.
TEST(NonFinite, PoliciesHoldForSumsOfWhatIsFinite) {
  const std::string found = ", in step 1: what all ranks have added up holds infinity or NaN";
  for (const CompressedExchange exchange : kEveryExchange) {
    const bool has_owner =
        exchange == CompressedExchange::divide || exchange == CompressedExchange::combine;
    const std::string expected =
        has_owner ? " as added up by rank 0, in step 1: the gradient holds infinity or NaN" : found;
    const std::string text = stop_text(3, {0, 1, 2}, 3000, 7, exchange, 3e38f);
    expect_contains(text, "gradient w" + expected);
    run_ranks(3, [&](Communicator& communicator) {
      CompressedAllReduceOptions options{
          .codec = int8(), .non_finite = NonFinite::stop, .exchange = exchange};
      Floats data(3000);
      data[7] = 3e38f;
      expect_contains(message_of<InvalidArgument>([&] { all_reduce(communicator, data, options); }),
                      "the vector" + expected);
      for (const auto& codec : {int8(), dense()}) {
        options.codec = codec;
        options.non_finite = NonFinite::zero;
        std::ranges::fill(data, 0.0f);
        data[7] = 3e38f;
        data[2000] = 1;
        all_reduce(communicator, data, options);
        EXPECT_EQ(data[7], 0);
        EXPECT_EQ(data[2000], 3);
      }
    });
  }
}

}  // namespace
}  // namespace stretto
