// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/staged_all_reduce.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/support/run_ranks.h"
#include "tests/support/simulated_streams.h"

namespace stretto::cuda {
namespace {

// Streams are late, but there is no device, so these tests do not show what its copies do.
constexpr StagedAllReduce::Options kSmall{.slice_bytes = 4096, .slots = 3};

std::vector<float> values_of(Rank rank, std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.1f + static_cast<float>(rank.value()));
  return values;
}

TEST(StagedAllReduce, HasTheBitsOfTheCommunicator) {
  run_ranks(3, [](Communicator& comm) {
    testing::SimulatedDevice device(static_cast<std::uint64_t>(comm.rank().value()));
    auto staged = StagedAllReduce::create(comm, device, kSmall).or_throw();
    std::vector<std::vector<float>> lists;
    std::uint64_t last = 0;
    for (const std::size_t count : {10'000, 1, 0, 1024, 1025}) {
      lists.push_back(values_of(comm.rank(), count));
      last = staged->begin(as_output(lists.back()), {.op = ReduceOp::mean});
    }
    EXPECT_FALSE(staged->has_ended(last));
    ASSERT_TRUE(staged->wait(last).ok());
    for (const auto& list : lists) {
      auto expected = values_of(comm.rank(), list.size());
      comm.all_reduce(expected, {.op = ReduceOp::mean}).wait();
      EXPECT_EQ(list, expected);
    }
    EXPECT_EQ(device.race(), "");
  });
}

TEST(StagedAllReduce, BeginsBehindTheDataOnlyIfTold) {
  run_ranks(2, [](Communicator& comm) {
    for (const bool is_told : {true, false}) {
      testing::SimulatedDevice device(7);
      auto staged = StagedAllReduce::create(comm, device, kSmall).or_throw();
      const auto compute = device.make_queue().or_throw();
      const auto ready = compute->make_event().or_throw();
      std::vector<float> data(5000);
      const std::vector<float> gradient(5000, 1.5f);
      execution::BoundStep step;
      step.inputs = {{.data = gradient.data(), .dtype = DType::f32}};
      step.outputs = {data.data()};
      step.output_element_bytes = sizeof(float);
      step.whole_count = data.size();
      ASSERT_TRUE(compute->run(step, data.size()).ok());
      compute->record(*ready);
      const auto number = staged->begin(as_output(data), {}, is_told ? ready.get() : nullptr);
      ASSERT_TRUE(staged->wait(number).ok());
      while (!compute->is_done()) continue;
      EXPECT_EQ(device.race().empty(), is_told);
      if (is_told) {
        EXPECT_EQ(data, std::vector<float>(5000, 3.0f));
      }
    }
  });
}

TEST(StagedAllReduce, FailsAsTheCommunicatorDoes) {
  run_ranks(2, [](Communicator& comm) {
    testing::SimulatedDevice device(7);
    auto staged = StagedAllReduce::create(comm, device, kSmall).or_throw();
    std::vector<float> data(comm.rank() == 0 ? 100 : 101);
    const auto number = staged->begin(as_output(data));
    const Status status = staged->wait(number);
    EXPECT_EQ(status.code(), StatusCode::mismatch) << status.message();
    EXPECT_EQ(staged->wait(number).message(), status.message());
    EXPECT_FALSE(staged->has_ended(number));
  });
}

TEST(StagedAllReduce, SaysHowFarItIsWhenTimeIsUp) {
  run_ranks(2, [](Communicator& comm) {
    testing::SimulatedDevice device(7);
    auto staged = StagedAllReduce::create(comm, device, kSmall).or_throw();
    std::vector<float> data(5000, 1.0f);
    if (comm.rank() == 0) {
      const auto number = staged->begin(as_output(data));
      const Status status = staged->wait(number, Deadline::after(std::chrono::milliseconds(20)));
      EXPECT_EQ(status.message(),
                "rank 0: the staged all_reduce has not ended: 0 of 5 slices have");
      comm.send(data, {.to = 1}).wait();
      EXPECT_TRUE(staged->wait(number).ok());
    } else {
      std::vector<float> received(5000);
      comm.recv(received, {.from = 0}).wait();
      EXPECT_TRUE(staged->wait(staged->begin(as_output(data))).ok());
    }
    EXPECT_EQ(data.back(), 2.0f);
  });
}

}  // namespace
}  // namespace stretto::cuda
