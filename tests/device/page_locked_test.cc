// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Host memory that is page-locked for devices, on the double of their driver.

#include "stretto/communicator/page_locked.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "tests/support/double_ranks.h"

namespace stretto::testing {
namespace {

constexpr std::size_t kBytes = 5000;

// Allocates host memory; when it is freed, `locked_at_its_end` gets the number of locked pieces.
Memory memory_of_the_host(int* locked_at_its_end = nullptr) {
  const auto free = [=](std::byte* data) {
    if (locked_at_its_end != nullptr) {
      *locked_at_its_end = Double::get().control().locked_pieces;
    }
    delete[] data;
  };
  const std::shared_ptr<std::byte> data(new std::byte[kBytes], free);
  return {data, {data.get(), kBytes}};
}

class PageLocked : public WithDouble {
 protected:
  void SetUp() override {
    ::setenv("STRETTO_CUDA_DRIVER", Double::file().c_str(), 1);  // NOLINT: of this process alone.
  }
  void TearDown() override { EXPECT_EQ(locked_pieces(), 0); }
  static int locked_pieces() { return Double::get().control().locked_pieces; }
};

TEST_F(PageLocked, IsTheSameMemoryAndUnlockedBeforeItIsFreed) {
  int locked_at_its_end = -1;
  {
    Memory memory = memory_of_the_host(&locked_at_its_end);
    std::byte* const data = memory.bytes().data();
    const Memory locked = page_locked(std::move(memory), 3);
    EXPECT_EQ(locked.bytes().data(), data);
    EXPECT_EQ(locked.bytes().size(), kBytes);
    EXPECT_EQ(locked_pieces(), 1);
    EXPECT_EQ(locked_at_its_end, -1);
  }
  EXPECT_EQ(locked_at_its_end, 0);
}

TEST_F(PageLocked, IsTheSameMemoryWhereTheDriverRefuses) {
  Double::get().reset([](fake_nccl::Control& control) { control.refuses_locks = true; });
  Memory memory = memory_of_the_host();
  std::byte* const data = memory.bytes().data();
  const Memory same = page_locked(std::move(memory), 0);
  EXPECT_EQ(same.bytes().data(), data);
  EXPECT_EQ(same.bytes().size(), kBytes);
  std::ranges::fill(same.bytes(), std::byte{1});
  EXPECT_EQ(locked_pieces(), 0);
}

TEST_F(PageLocked, OfADeviceThatIsNotThereIsTheSameMemory) {
  const Memory same = page_locked(memory_of_the_host(), 8);
  EXPECT_EQ(same.bytes().size(), kBytes);
  EXPECT_EQ(locked_pieces(), 0);
}

TEST_F(PageLocked, OfNothingIsNothing) {
  EXPECT_TRUE(page_locked(Memory(), 0).bytes().empty());
  EXPECT_EQ(locked_pieces(), 0);
}

}  // namespace
}  // namespace stretto::testing
