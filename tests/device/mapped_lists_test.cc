// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Lists of buffers in device memory that all ranks of the host have mapped.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "stretto/job/join.h"
#include "tests/device/device_memory.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;
using Control = fake_nccl::Control;

TEST_F(DeviceMemory, ListsThatLieOneBehindTheOtherAreOneBuffer) {
  DoubleRanks ranks = make(2);
  ranks.on_all([](Communicator& rank) {
    const auto own = rank.allocate<float>(2, rank.device());
    const auto all = rank.allocate<float>(6, rank.device());
    const auto part = [&](std::size_t first) { return view_of(all.span().subspan(first, 2)); };
    std::fill_n(reach(own), 2, rank.rank() == 0 ? 1.0f : 2.0f);
    const auto gather = [&](std::size_t first, std::size_t second) {
      return rank.all_gather_list(view_of(own.span()), std::array{part(first), part(second)});
    };
    gather(1, 3).wait();
    EXPECT_EQ(std::vector<float>(reach(all), reach(all) + 6),
              (std::vector<float>{0, 1, 1, 2, 2, 0}));
    rank.reduce_scatter_list(std::array<ConstView, 2>{part(0), part(2)}, view_of(own.span()))
        .wait();
    EXPECT_EQ(reach(own)[1], rank.rank() == 0 ? 2 : 4);
    rank.all_reduce_coalesced(std::array{part(2), part(4)}).wait();
    EXPECT_EQ(reach(all)[4], 4);
    // If the list were one buffer, a rank's input would be overwritten before the other rank has
    // read it.
    reach(all)[1] = rank.rank() == 0 ? 8 : 9;
    reach(all)[2] = 7;
    rank.all_gather_list(part(1), std::array{part(0), part(2)}).wait();
    EXPECT_EQ(std::vector<float>(reach(all), reach(all) + 4), (std::vector<float>{8, 7, 9, 7}));
  });
}

// The copies to one buffer and back are late, too.
TEST_F(DeviceMemory, LateKernelsOfListsAreWaitedFor) {
  DoubleRanks ranks = make(2);
  Double::get().change([](Control& control) { control.holds_kernels = true; });
  OnceTrue lets_go([] { return Double::get().control().kernels >= 1; },
                   [] {
                     std::this_thread::sleep_for(milliseconds(50));
                     Double::get().change([](Control& control) { control.holds_kernels = false; });
                   });
  ranks.on_all([](Communicator& rank) {
    const auto data = rank.allocate<float>(3000, rank.device());
    std::fill_n(reach(data), 3000, 1.0f);
    const auto list =
        std::array{view_of(data.span().subspan(2000, 1000)), view_of(data.span().subspan(0, 1000))};
    for (int i = 0; i < 3; ++i) rank.all_reduce_coalesced(list, {.factor = 1.5}).wait();
    EXPECT_EQ(reach(data)[0], 27);
    EXPECT_EQ(reach(data)[1500], 1);
    EXPECT_EQ(reach(data)[2999], 27);
  });
  lets_go.join();
}

TEST_F(DeviceMemory, ListsTakeLittleMoreScratchThanTheyAreLong) {
  const FakeEnvironment environment = nccl_variables();
  const auto alone = join({.rank = 0, .size = 1, .backend = "cuda", .environment = &environment});
  constexpr std::size_t kBytes = std::size_t{5} << 20;
  const auto data = alone->allocate<float>(kBytes / sizeof(float), alone->device());
  const std::size_t before = Double::get().control().exported_bytes;
  alone->all_reduce_coalesced(std::array{view_of(data.span())}, {.factor = 1.5}).wait();
  const std::size_t made = Double::get().control().exported_bytes - before;
  EXPECT_GE(made, kBytes);
  EXPECT_LE(made, kBytes / 8 * 9);
}

}  // namespace
}  // namespace stretto::testing
