// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Device memory that ranks on NCCL make and free. NCCL and the device are a double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "stretto/base/error.h"
#include "tests/support/double_ranks.h"
#include "tests/support/failures.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;

class NcclDoubleMemory : public WithDouble {};

// NCCL does not define what happens then.
TEST_F(NcclDoubleMemory, RegisteredAndOtherIsNotMixed) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const auto refused = [](const auto& call) { return error_of<InvalidArgument>(call); };
    const auto made = rank.allocate<float>(8, rank.device());
    const View data = as_output(made.span());
    const View other = on_device(rank, 8);
    expect_contains(refused([&] { rank.all_reduce(data, other).wait(); }),
                    "some buffers lie in memory that allocate() has made and some in other memory");
    const std::vector<std::size_t> counts = {3, 5};
    const View share{data.data, counts[static_cast<std::size_t>(rank.rank().value())], DType::f32};
    expect_contains(refused([&] { rank.gather(share, data, {.counts = counts}).wait(); }),
                    "memory that allocate() has made is neither for unequal shares");
    expect_contains(refused([&] { rank.all_to_all(data, data).wait(); }), "in place");
    expect_contains(refused([&] { (void)rank.allocate<float>(8, 7); }),
                    "device 7 of this process is not the one that this rank works on");
    rank.all_reduce(data).wait();
    const View mine = rank.rank() == 0 ? data : other;
    expect_contains(error_of<Mismatch>([&] { rank.all_reduce(mine).wait(); }),
                    "what is for memory of devices that allocate() has made");
  });
  EXPECT_EQ(Double::get().control().launches, 2);
}

TEST_F(NcclDoubleMemory, RegisteredIsZeroedAndOutlivesItsCommunicator) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const auto made = rank.allocate<float>(8, rank.device());
    EXPECT_TRUE(rank.is_device_memory(made.data()));
    const std::byte* const bytes = Double::get().reach(made.data());
    EXPECT_TRUE(std::all_of(bytes, bytes + 32, [](std::byte b) { return b == std::byte{0}; }));
    rank.all_reduce(made.span()).wait();
    // Another communicator treats it like any other memory.
    rank.split({.color = 0})->all_reduce(made.span()).wait();
    const auto more = rank.allocate<float>(8, rank.device());
    rank.barrier().wait();
    EXPECT_EQ(Double::get().control().registrations, 4);
    rank.barrier().wait();
    ranks[rank.rank().value()].reset();
    EXPECT_GT(Double::get().control().made_blocks, 0);
  });
  EXPECT_EQ(Double::get().control().registrations, 0);
  EXPECT_EQ(Double::get().control().made_blocks, 0);
}

// NCCL reports this as an unhandled CUDA error.
TEST_F(NcclDoubleMemory, WhatTheDeviceHasNotIsOutOfMemory) {
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const std::string text = error_of<OutOfMemory>(
        [&] { (void)rank.allocate<float>(std::size_t{1} << 30, rank.device()); });
    expect_contains(text, "allocate 4294967296 bytes on device");
    EXPECT_EQ(rank.allocate<float>(8, rank.device()).size(), 8u);
  });
}

// While NCCL takes an operation, it accepts no other calls.
TEST_F(NcclDoubleMemory, RegisteredComesAndGoesWhenNcclIsNotBusy) {
  DoubleRanks ranks({.size = 2});
  std::optional<Buffer<float>> old[2];
  ranks.on_all([&](Communicator& rank) {
    old[rank.rank().value()] = rank.allocate<float>(8, rank.device());
  });
  Double::get().change([](auto& control) { control.holds_launches = true; });
  OnceTrue lets_go([] { return Double::get().control().launches >= 2; },
                   [] {
                     std::this_thread::sleep_for(milliseconds(50));
                     Double::get().change([](auto& control) { control.holds_launches = false; });
                   });
  ranks.on_all([&](Communicator& rank) {
    Work work = rank.all_reduce(on_device(rank, 8));
    while (Double::get().control().launches < 2) rank.poll();
    if (rank.rank() == 0) old[0].reset();
    const auto made = rank.allocate<float>(8, rank.device());
    EXPECT_FALSE(Double::get().control().holds_launches);
    old[rank.rank().value()].reset();
    work.wait();
  });
  lets_go.join();
  EXPECT_EQ(Double::get().control().registrations, 0);
}

// NCCL accepts no calls of a communicator that is being finalized.
TEST_F(NcclDoubleMemory, RegisteredMayBeFreedWhileItsCommunicatorEnds) {
  for (int round = 0; round < 10; ++round) {
    DoubleRanks ranks({.size = 2});
    ranks.on_all([&](Communicator& rank) {
      std::vector<Buffer<float>> made;
      for (int i = 0; i < 50; ++i) made.push_back(rank.allocate<float>(8, rank.device()));
      rank.barrier().wait();
      std::thread frees([&] { made.clear(); });
      ranks[rank.rank().value()].reset();
      frees.join();
    });
    EXPECT_EQ(Double::get().control().made_blocks, 0);
    EXPECT_EQ(Double::get().control().registrations, 0);
  }
}

// Scratch memory is kept until the end, so it must not grow to the sum of all sizes.
TEST_F(NcclDoubleMemory, ScratchOfSizesThatGrowIsMadeAFewTimes) {
  constexpr std::size_t kMost = 200;
  DoubleRanks ranks({.size = 2});
  ranks.on_all([&](Communicator& rank) {
    const View all = on_device(rank, 2 * kMost);
    rank.barrier().wait();
    const int before = Double::get().control().allocations;
    rank.barrier().wait();
    for (std::size_t count = 1; count <= kMost; ++count) {
      const View data(all.data, 2 * count, DType::f32);
      rank.all_to_all(data, data).wait();
    }
    rank.barrier().wait();
    EXPECT_LE(Double::get().control().allocations, before + 2 * 9);  // 1, 2, 4 to 256.
  });
}

}  // namespace
}  // namespace stretto::testing
