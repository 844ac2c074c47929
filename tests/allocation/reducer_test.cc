// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Steps of the reducer allocate nothing once they have been done often enough.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "stretto/job/threads.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"
#include "tests/allocation/counter.h"

namespace stretto::testing {
namespace {

constexpr int kRanks = 2;
constexpr std::size_t kGradients = 40;

class ReducerSteps {
 public:
  // `options` are made for each rank: a hook has state.
  explicit ReducerSteps(const std::function<ReducerOptions()>& options) {
    std::vector<GradientDescription> gradients;
    for (std::size_t i = 0; i < kGradients; ++i) {
      gradients.push_back({std::to_string(i), DType::f32, 100});
    }
    // At the same time: hooks find out whether ranks use the same.
    reducers_.resize(ranks_.size());
    std::thread other(
        [&] { reducers_[1] = std::make_unique<Reducer>(*ranks_[1], gradients, options()); });
    reducers_[0] = std::make_unique<Reducer>(*ranks_[0], gradients, options());
    other.join();
  }

  // Whether a hundred steps pass without an allocation, within a few hundred. Where one rank falls
  // far behind, more operations are under way than ever before, and their places are kept.
  bool settle(std::size_t unused = kGradients) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      if (run(100, unused) == 0) return true;
    }
    return false;
  }

 private:
  // Returns how often memory was allocated in `steps` steps of all ranks. Gradient `unused` is left
  // out on rank 1.
  long run(int steps, std::size_t unused) {
    const auto step = [&](std::size_t r) {
      for (std::size_t i = kGradients; i-- > 0;) {
        if (r == 0 || i != unused) reducers_[r]->mark_ready(i);
      }
      reducers_[r]->finalize();
      (void)reducers_[r]->rebuild();
    };
    std::thread other([&] {
      for (int i = 0; i < steps; ++i) step(1);
    });
    step(0);  // Once the thread has begun, which allocates.
    long count = 0;
    {
      const AllocationCount counted;
      for (int i = 1; i < steps; ++i) step(0);
      other.join();
      count = counted.value();
    }
    return count;
  }

  std::vector<std::unique_ptr<Communicator>> ranks_ = make_thread_ranks({.size = kRanks});
  std::vector<std::unique_ptr<Reducer>> reducers_;
};

TEST(ReducerAllocation, StepsAllocateNothing) {
  ReducerSteps steps([] { return ReducerOptions{.bucket_bytes = {2000}}; });
  EXPECT_TRUE(steps.settle());
}

TEST(ReducerAllocation, StepsWithUnusedGradientsAllocateNothing) {
  ReducerSteps steps([] { return ReducerOptions{.bucket_bytes = {2000}, .find_unused = true}; });
  EXPECT_TRUE(steps.settle(7));
}

TEST(ReducerAllocation, HalvedGradientsAllocateNothing) {
  ReducerSteps steps([] {
    return ReducerOptions{.bucket_bytes = {2000}, .hook = std::make_shared<Bf16Reduction>()};
  });
  EXPECT_TRUE(steps.settle());
}

TEST(ReducerAllocation, CompressedGradientsAllocateNothing) {
  for (const auto& codec : {top_k({.density = 0.1}), int8(), one_bit()}) {
    ReducerSteps steps([&] {
      return ReducerOptions{.bucket_bytes = {2000},
                            .hook = std::make_shared<CompressedReduction>(
                                CompressionOptions{.codec = codec, .min_elements = 1})};
    });
    EXPECT_TRUE(steps.settle()) << codec->name();
  }
}

}  // namespace
}  // namespace stretto::testing
