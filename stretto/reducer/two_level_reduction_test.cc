// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/two_level_reduction.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/clock.h"
#include "stretto/base/rank_vector.h"
#include "stretto/job/threads.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/failures.h"
#include "tests/support/gradients.h"
#include "tests/support/on_threads.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

using testing::compressing;
using testing::floats;
using testing::message_of;

using Hosts = std::vector<std::int32_t>;
using Floats = std::vector<float>;

// Calls `body` on ranks that are on `hosts`, and throws what one of them threw.
void run_on(const Hosts& hosts, const std::function<void(Communicator&, int rank)>& body) {
  run_ranks(
      {.size = static_cast<int>(hosts.size()), .timeout = std::chrono::seconds(20), .hosts = hosts},
      body);
}

std::vector<GradientDescription> model() {
  return {{"first", DType::f32, 4099},
          {"one", DType::f32, 1},
          {"matrix", DType::f32, 6000, 60},
          {"few", DType::f32, 700},
          {"steps", DType::i64, 3}};
}
constexpr std::size_t kOfF32 = 4, kElements = 4099 + 1 + 6000 + 700;

// Returns an element of a rank's gradient in a step. Sums of these are exact.
float value_of(int rank, int step, std::size_t gradient, std::size_t element) {
  const std::size_t number = element * 7 + gradient * 5 + static_cast<std::size_t>(rank * 3 + step);
  return static_cast<float>(number % 31) - 12.0F;
}

// Writes all gradients but `unused`, and ends the step.
void run_step(Reducer& reducer, int rank, int step, std::size_t unused = kOfF32 + 1) {
  for (std::size_t i = reducer.gradient_count(); i-- > 0;) {
    if (i == unused) continue;
    if (i == kOfF32) {
      const auto bytes = reducer.gradient_bytes(i);
      std::ranges::fill(bytes, std::byte{0});
      bytes[0] = std::byte{2};
    } else {
      const std::span<float> values = floats(reducer, i);
      for (std::size_t e = 0; e < values.size(); ++e) values[e] = value_of(rank, step, i, e);
    }
    reducer.mark_ready(i);
  }
  reducer.finalize();
}

Floats all_of(const Reducer& reducer) {
  Floats values;
  for (std::size_t i = 0; i < kOfF32; ++i) {
    const auto of_gradient = floats(reducer, i);
    values.insert(values.end(), of_gradient.begin(), of_gradient.end());
  }
  return values;
}

std::shared_ptr<TwoLevelReduction> two_levels(std::shared_ptr<CommunicationHook> inner) {
  return std::make_shared<TwoLevelReduction>(std::move(inner));
}

const std::vector<Hosts>& layouts() {
  static const std::vector<Hosts> kAll = {{0, 0, 1, 1},    {0, 1, 0, 1},       {0, 1, 1, 1},
                                          {0, 0, 0, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 0, 0, 1, 1, 1},
                                          {0, 1},          {0, 0, 0},          {0}};
  return kAll;
}

TEST(TwoLevelReduction, IsTheSumAndTheMeanOfAllRanks) {
  for (const Hosts& hosts : layouts()) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
      run_on(hosts, [&](Communicator& communicator, int rank) {
        Reducer reducer(communicator, model(),
                        {.op = op,
                         .bucket_bytes = {5000},
                         .hook = two_levels(std::make_shared<PlainReduction>())});
        for (int step = 0; step < 3; ++step) {
          run_step(reducer, rank, step);
          for (std::size_t i = 0; i < kOfF32; ++i) {
            for (std::size_t e = 0; e < floats(reducer, i).size(); ++e) {
              float sum = 0;
              for (int r = 0; r < communicator.size(); ++r) sum += value_of(r, step, i, e);
              const auto ranks = static_cast<float>(communicator.size());
              const float expected = op == ReduceOp::mean ? sum / ranks : sum;
              ASSERT_NEAR(floats(reducer, i)[e], expected, 1e-5F * std::abs(expected))
                  << i << ", " << e;
            }
          }
          const int steps = std::to_integer<int>(reducer.gradient_bytes(kOfF32)[0]);
          EXPECT_EQ(steps, op == ReduceOp::mean ? 2 : 2 * communicator.size());
          (void)reducer.rebuild();
        }
      });
    }
  }
}

// Returns the gradients after each step, and checks that they are the same on all ranks.
std::vector<Floats> results(const Hosts& hosts, const CompressionOptions& options,
                            std::size_t bucket_bytes) {
  RankVector<std::vector<Floats>> of_rank(static_cast<int>(hosts.size()));
  run_on(hosts, [&](Communicator& communicator, int rank) {
    Reducer reducer(communicator, model(),
                    {.bucket_bytes = {bucket_bytes}, .hook = two_levels(compressing(options))});
    for (int step = 0; step < 4; ++step) {
      run_step(reducer, rank, step);
      of_rank[rank].push_back(all_of(reducer));
      (void)reducer.rebuild();
    }
  });
  for (const auto& other : of_rank) EXPECT_EQ(other, of_rank[0]);
  return of_rank[0];
}

TEST(TwoLevelReduction, RanksAgreeBitForBitWhateverTheBuckets) {
  for (const auto& codec : std::vector<std::shared_ptr<const Compressor>>{
           top_k({.density = 0.1}), int8(), f16(), one_bit(), threshold({.limit = 4.0F}),
           power_sgd()}) {
    const CompressionOptions options{.codec = codec, .min_elements = 1};
    for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 1, 1}}) {
      const auto alone = results(hosts, options, 1);
      EXPECT_EQ(results(hosts, options, 1 << 20), alone) << codec->name();
      EXPECT_EQ(results(hosts, options, 20000), alone) << codec->name();
    }
  }
}

// What has been sent so far and what the owners of parts still hold must add up to what all ranks
// had.
TEST(TwoLevelReduction, NothingIsLost) {
  for (const Hosts& hosts : layouts()) {
    std::mutex mutex;
    std::vector<double> had(kElements), sent(kElements);
    double left = 0;
    run_on(hosts, [&](Communicator& communicator, int rank) {
      const auto compressed = compressing({.codec = top_k({.density = 0.1}), .min_elements = 1});
      Reducer reducer(
          communicator, model(),
          {.op = ReduceOp::sum, .bucket_bytes = {9000}, .hook = two_levels(compressed)});
      for (int step = 0; step < 4; ++step) {
        run_step(reducer, rank, step);
        const Floats values = all_of(reducer);
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0, at = 0; i < kOfF32; ++i) {
          for (std::size_t e = 0; e < model()[i].count; ++e)
            had[at++] += value_of(rank, step, i, e);
        }
        for (std::size_t e = 0; rank == 0 && e < values.size(); ++e) sent[e] += values[e];
      }
      const std::lock_guard lock(mutex);
      for (const char* name : {"first", "one", "matrix", "few"}) {
        const auto residual = compressed->residual(name);
        left += std::accumulate(residual.begin(), residual.end(), 0.0);
      }
    });
    const auto total = [](const auto& of) { return std::accumulate(of.begin(), of.end(), 0.0); };
    EXPECT_EQ(total(sent) + left, total(had)) << ::testing::PrintToString(hosts);
    EXPECT_NE(left, 0.0);
  }
}

// A host sends the same number of bytes however many ranks it has, and each rank sends a part.
TEST(TwoLevelReduction, MessagesAreThoseOfHosts) {
  for (const Hosts& hosts : {Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 0, 1, 1, 1, 1}}) {
    std::mutex mutex;
    std::size_t sent = 0, most = 0;
    run_on(hosts, [&](Communicator& communicator, int rank) {
      const auto compressed = compressing({.codec = int8()});
      Reducer reducer(communicator, {{"w", DType::f32, 100000}}, {.hook = two_levels(compressed)});
      std::ranges::fill(floats(reducer, 0), static_cast<float>(rank));
      reducer.mark_ready(0);
      reducer.finalize();
      const std::lock_guard lock(mutex);
      sent += compressed->last_step().message_bytes;
      most = std::max(most, compressed->last_step().message_bytes);
      EXPECT_EQ(compressed->last_step().received_bytes, compressed->last_step().message_bytes);
    });
    const auto of_host = static_cast<double>(*int8()->message_bytes(100000, 0));
    EXPECT_NEAR(static_cast<double>(sent), 2 * of_host, 1000.0);
    EXPECT_NEAR(static_cast<double>(most), 2 * of_host / static_cast<double>(hosts.size()), 300.0);
  }
}

// A gradient that at least one rank of a host computes counts as computed by the host. If no rank
// of a host computes it, or no rank at all, its residual stays.
TEST(TwoLevelReduction, UnusedGradientsKeepWhatHasNotBeenSent) {
  const auto train = [](const std::function<std::size_t(int rank, int step)>& unused) {
    RankVector<Floats> results(4), residuals(4);
    run_on({0, 0, 1, 1}, [&](Communicator& communicator, int rank) {
      const auto compressed = compressing({.codec = top_k({.density = 0.01}), .min_elements = 1});
      Reducer reducer(communicator, model(),
                      {.op = ReduceOp::sum, .find_unused = true, .hook = two_levels(compressed)});
      for (int step = 0; step < 2; ++step) {
        for (float& value : floats(reducer, 0)) value = 0;
        run_step(reducer, rank, step, unused(rank, step));
      }
      results[rank] = testing::copy_of(floats(reducer, 0));
      residuals[rank] = testing::copy_of(compressed->residual("first"));
    });
    EXPECT_EQ(results[0], results[3]);
    return std::pair(results, residuals);
  };
  constexpr std::size_t kNone = kOfF32 + 1;
  const auto sum = [](const Floats& of) { return std::accumulate(of.begin(), of.end(), 0.0); };
  const auto [first, kept] = train([](int, int step) { return step == 0 ? kNone : 0; });
  double had = 0;
  for (int rank = 0; rank < 4; ++rank) {
    for (std::size_t e = 0; e < 4099; ++e) had += value_of(rank, 0, 0, e);
  }
  EXPECT_NE(sum(kept[0]), 0.0);
  EXPECT_EQ(sum(first[0]), 0.0) << "nobody has one in the second step";
  // No rank of one host has a gradient in the second step.
  const auto [second, waiting] =
      train([](int rank, int step) { return step == 0 || rank > 1 ? kNone : 0; });
  EXPECT_EQ(waiting[0], kept[0]);
  EXPECT_EQ(waiting[1], kept[1]);
  EXPECT_NE(waiting[2], kept[2]);
  // One rank of that host has one.
  const auto [third, sent] =
      train([](int rank, int step) { return step == 0 || rank > 0 ? kNone : 0; });
  EXPECT_NE(sent[0], kept[0]);
  EXPECT_NE(sent[1], kept[1]);
}

TEST(TwoLevelReduction, WhatStopsOneRankStopsAll) {
  run_on({0, 0, 1, 1}, [](Communicator& communicator, int rank) {
    const auto compressed = compressing({.codec = int8(), .non_finite = NonFinite::stop});
    Reducer reducer(communicator, {{"w", DType::f32, 8000}}, {.hook = two_levels(compressed)});
    if (rank == 3) floats(reducer, 0)[7000] = std::numeric_limits<float>::infinity();
    const auto text = message_of<InvalidArgument>([&] {
      reducer.mark_ready(0);
      reducer.finalize();
    });
    const char* const expected = rank % 2 == 1
                                     ? "added up on each host: gradient w of rank 3"
                                     : "another rank of this host, which has part 2 of 2, says why";
    EXPECT_NE(text.find(expected), text.npos) << text;
    EXPECT_FALSE(communicator.has_failed()) << "as without hosts";
  });
}

TEST(TwoLevelReduction, OtherOptionsOfOneRankAreRefusedOnAll) {
  run_on({0, 0, 1, 1}, [](Communicator& communicator, int rank) {
    const float density = rank == 3 ? 0.2F : 0.1F;
    const auto hook = two_levels(compressing({.codec = top_k({.density = density})}));
    EXPECT_NE(message_of<Mismatch>([&] { Reducer(communicator, model(), {.hook = hook}); }), "");
  });
}

TEST(TwoLevelReduction, GoesOnBitForBitWhereItWasSaved) {
  const CompressionOptions options{.codec = top_k({.density = 0.1}), .min_elements = 1};
  const Hosts hosts = {0, 0, 0, 1, 1};
  const auto through = results(hosts, options, 9000);
  RankVector<std::vector<std::byte>> states(5);
  for (const int begin : {0, 2}) {
    run_on(hosts, [&](Communicator& communicator, int rank) {
      const auto hook = two_levels(compressing(options));
      if (begin > 0) {
        hook->load(states[rank]);
        EXPECT_EQ(hook->save(), states[rank]);
      }
      Reducer reducer(communicator, model(), {.bucket_bytes = {9000}, .hook = hook});
      for (int step = begin; step < begin + 2; ++step) {
        run_step(reducer, rank, step);
        EXPECT_EQ(all_of(reducer), through[static_cast<std::size_t>(step)]);
      }
      states[rank] = hook->save();
      EXPECT_NO_THROW(hook->load(states[rank]));
    });
  }
  // On other ranks, the parts have other elements: ranks train on without the residuals, in the
  // same step.
  for (const bool is_attached : {false, true}) {
    run_on({0, 1, 0, 1, 0}, [&](Communicator& communicator, int rank) {
      const auto hook = two_levels(compressing(options));
      if (!is_attached) hook->load(states[rank]);
      Reducer reducer(communicator, model(), {.bucket_bytes = {9000}, .hook = hook});
      if (is_attached) hook->load(states[rank]);
      EXPECT_NO_THROW(run_step(reducer, rank, 4));
      if (rank < 4) {
        EXPECT_EQ(hook->last_compression()->step, 5u);
      }
    });
  }
  // One rank has loaded a damaged state.
  run_on({0, 0, 1, 1}, [&](Communicator& communicator, int rank) {
    const auto hook = two_levels(compressing(options));
    if (rank == 3) hook->load(std::span(states[3]).first(100));
    const auto owner = std::make_shared<int>();
    const ReducerOptions own{.hook = hook, .hook_owner = owner};
    const auto text = message_of<InvalidArgument>([&] { Reducer(communicator, model(), own); });
    EXPECT_NE(text, "") << rank;
    hook->load(states[rank]);  // After the refusal, another state is accepted.
    Reducer reducer(communicator, model(), own);
    EXPECT_NO_THROW(run_step(reducer, rank, 0));
  });
}

TEST(TwoLevelReduction, HooksThatKeepNothingAreSavedAndLoaded) {
  run_on({0, 0, 1, 1}, [](Communicator& communicator, int rank) {
    for (const bool loads : {false, true}) {
      const auto hook = two_levels(std::make_shared<F16Reduction>());
      if (loads) hook->load({});
      Reducer reducer(communicator, model(), {.op = ReduceOp::sum, .hook = hook});
      run_step(reducer, rank, 0);
      EXPECT_EQ(floats(reducer, 0)[5], value_of(0, 0, 0, 5) + value_of(1, 0, 0, 5) +
                                           value_of(2, 0, 0, 5) + value_of(3, 0, 0, 5));
      EXPECT_TRUE(hook->save().empty());
      EXPECT_NO_THROW(hook->load({}));
    }
  });
}

// Rank 0 shares no group of the hook with rank 3, and keeps its own groups alive.
TEST(TwoLevelReduction, TheLossOfOneRankEndsTheStepOfAll) {
  auto ranks =
      make_thread_ranks({.size = 4, .timeout = std::chrono::minutes(2), .hosts = {0, 0, 1, 1}});
  std::vector<std::shared_ptr<TwoLevelReduction>> hooks;
  for (int rank = 0; rank < 4; ++rank) hooks.push_back(two_levels(compressing()));
  on_threads(4, [&](std::size_t rank) {
    auto reducer = std::make_unique<Reducer>(
        *ranks[rank], std::vector<GradientDescription>{{"w", DType::f32, 8000}},
        ReducerOptions{.hook = hooks[rank], .hook_owner = hooks[rank]});
    if (rank == 3) {
      ranks[rank]->barrier().wait();  // All ranks have a reducer.
      reducer.reset();
      hooks[rank].reset();
      ranks[rank].reset();
      return;
    }
    const TimePoint begun = Clock::now();
    const auto step = [&] {
      ranks[rank]->barrier().wait();  // Rank 3 may end before other ranks have left this barrier.
      reducer->mark_ready(0);
      reducer->finalize();
    };
    EXPECT_NE(message_of<Error>(step), "");
    EXPECT_LT(Clock::now() - begun, std::chrono::seconds(60));
  });
}

// This happens when ranks have been lost: residuals of other elements begin anew.
TEST(TwoLevelReduction, OfFewerRanksItHasOtherParts) {
  run_on({0, 0, 0, 1, 1, 1}, [](Communicator& communicator, int rank) {
    const auto compressed = compressing({.codec = top_k({.density = 0.1}), .min_elements = 1});
    const auto hook = two_levels(compressed);
    const auto owner = std::make_shared<int>();
    const auto train = [&](Communicator& ranks) {
      Reducer reducer(ranks, model(), {.op = ReduceOp::sum, .hook = hook, .hook_owner = owner});
      run_step(reducer, ranks.rank().value(), 0);
      EXPECT_GT(compressed->last_step().message_bytes, 0u);
      return all_of(reducer);
    };
    const Floats of_all = train(communicator);
    EXPECT_GT(compressed->residual("matrix").size(), 1900u);
    const auto fewer =
        communicator.split({.color = rank % 3 == 2 ? std::nullopt : std::optional(0)});
    if (fewer == nullptr) return;
    (void)train(*fewer);
    EXPECT_EQ(compressed->residual("matrix").size(), 3000u);
  });
}

}  // namespace
}  // namespace stretto
