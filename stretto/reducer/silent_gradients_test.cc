// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/base/rank_vector.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"
#include "tests/support/gradients.h"
#include "tests/support/run_ranks.h"

// If no rank computes a gradient, its reduced value is discarded, so nothing may be taken out of a
// residual. If only some ranks compute it, the residuals of the others stay.
namespace stretto {
namespace {

using Floats = std::vector<float>;

using testing::compressing;
using testing::copy_of;
using testing::floats;

Floats residual_of(const CompressedReduction& hook) { return copy_of(hook.residual("branch")); }

// A gradient that ranks use in some steps, and one that they always use.
std::unique_ptr<Reducer> reducer_with(Communicator& communicator,
                                      const std::shared_ptr<CommunicationHook>& hook) {
  const std::vector<GradientDescription> gradients = {{"branch", DType::f32, 2000, 50},
                                                      {"trunk", DType::f32, 1500, 50}};
  return std::make_unique<Reducer>(communicator, gradients,
                                   ReducerOptions{.find_unused = true, .hook = hook});
}

void run_step(Reducer& reducer, bool uses_branch) {
  std::ranges::fill(floats(reducer, 1), 1.0f);
  reducer.mark_ready(1);
  if (uses_branch) reducer.mark_ready(0);
  reducer.finalize();
}

void make_residual(Reducer& reducer, Rank rank) {
  Random random(static_cast<std::uint64_t>(rank.value()) + 1);
  for (float& value : floats(reducer, 0)) value = static_cast<float>(random.uniform()) - 0.5f;
  run_step(reducer, true);
}

// Returns the gradient after a step in which only rank 1 uses it.
Floats expect_residuals_wait(const std::shared_ptr<CompressedReduction>& hook,
                             Communicator& communicator, bool is_divided = false) {
  const bool is_second = communicator.rank() == Rank(1);
  const auto reducer = reducer_with(communicator, hook);
  make_residual(*reducer, communicator.rank());
  const Floats before = residual_of(*hook);
  EXPECT_TRUE(std::ranges::any_of(before, [](float value) { return value != 0; }));
  std::ranges::fill(floats(*reducer, 0), 0.0f);
  run_step(*reducer, false);
  EXPECT_EQ(residual_of(*hook), before) << "unused on all ranks";
  EXPECT_EQ(floats(*reducer, 0)[0], 0);
  std::ranges::fill(floats(*reducer, 0), 7.0f);
  reducer->set_frozen(0, true);
  run_step(*reducer, false);
  EXPECT_EQ(residual_of(*hook), before) << "frozen";
  EXPECT_EQ(floats(*reducer, 0)[0], 7);
  reducer->set_frozen(0, false);
  std::ranges::fill(floats(*reducer, 0), is_second ? 1.0f : 0.0f);
  run_step(*reducer, is_second);
  // The owner of a part keeps what is not yet sent of the sum.
  if (!is_divided) {
    EXPECT_EQ(residual_of(*hook) == before, !is_second) << "used on rank 1";
  }
  return copy_of(floats(*reducer, 0));
}

TEST(SilentGradients, KeepTheirResiduals) {
  for (const float momentum : {0.0f, 0.9f}) {
    for (const bool is_divided : {false, true}) {
      RankVector<Floats> reduced(3);
      run_ranks(3, [&](Communicator& communicator) {
        const auto hook = compressing(
            {.codec = top_k({.density = 0.1}),
             .momentum = momentum,
             .exchange = is_divided ? CompressedExchange::divide : CompressedExchange::gather});
        reduced[communicator.rank()] = expect_residuals_wait(hook, communicator, is_divided);
      });
      EXPECT_EQ(reduced[0], reduced[1]);
      EXPECT_EQ(reduced[0], reduced[2]);
      EXPECT_TRUE(std::ranges::any_of(reduced[0], [](float value) { return value != 0; }));
    }
  }
}

TEST(SilentGradients, KeepWhatTheirFactorsLack) {
  run_ranks(3, [](Communicator& communicator) {
    expect_residuals_wait(compressing({.codec = power_sgd()}), communicator);
  });
}

// Residuals, momenta and factors stay as they were. So they do where a rank still holds an earlier
// value in the gradient, which counts as its own until all ranks say that they have not computed
// it.
TEST(SilentGradients, HooksGoOnAsIfTheStepHadNotBeen) {
  const std::vector<CompressionOptions> all = {
      {.codec = power_sgd()},
      {.codec = top_k({.density = 0.1}), .momentum = 0.9f},
      {.codec = top_k({.density = 0.1}), .momentum = 0.9f, .exchange = CompressedExchange::divide},
      {.codec = threshold({.limit = 0.4f})},
      {.codec = one_bit()}};
  for (const CompressionOptions& options : all) {
    run_ranks(2, [&](Communicator& communicator) {
      const auto after = [&](int idle_steps, float value) {
        const auto hook = compressing(options);
        const auto reducer = reducer_with(communicator, hook);
        make_residual(*reducer, communicator.rank());
        for (int step = 0; step < idle_steps; ++step) {
          std::ranges::fill(floats(*reducer, 0), value);
          run_step(*reducer, false);
          EXPECT_EQ(floats(*reducer, 0)[0], value);
        }
        make_residual(*reducer, communicator.rank());
        return copy_of(floats(*reducer, 0));
      };
      const Floats expected = after(0, 0);
      EXPECT_EQ(after(2, 0), expected) << options.codec->name();
      EXPECT_EQ(after(2, 0.3f), expected) << options.codec->name();
      EXPECT_EQ(after(2, communicator.rank() == Rank(0) ? 0.3f : 0), expected)
          << options.codec->name();
    });
  }
}

// Steps that are not compressed also send residuals.
TEST(SilentGradients, KeepTheirResidualsInStepsThatAreNotCompressed) {
  run_ranks(2, [](Communicator& communicator) {
    const CompressionOptions options{.codec = top_k({.density = 0.1})};
    const auto compressed = compressing(options);
    make_residual(*reducer_with(communicator, compressed), communicator.rank());
    CompressionOptions other = options;
    other.compression = Compression::never;
    const auto hook = compressing(other);
    hook->load(compressed->save());
    const auto reducer = reducer_with(communicator, hook);
    const Floats before = residual_of(*hook);
    run_step(*reducer, false);
    EXPECT_EQ(residual_of(*hook), before);
    run_step(*reducer, true);
    EXPECT_EQ(residual_of(*hook), Floats(before.size()));
  });
}

}  // namespace
}  // namespace stretto
