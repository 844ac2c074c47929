// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/take_lines.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <numeric>
#include <vector>

namespace stretto {
namespace {

TEST(TakeLines, LeavesBytesAsTheyAre) {
  std::vector<unsigned char> bytes(1000);
  std::iota(bytes.begin(), bytes.end(), 1);
  const std::vector<unsigned char> before = bytes;
  for (const std::size_t begin : {0u, 1u, 63u}) {
    for (const std::size_t count : {0u, 1u, 64u, 65u, 900u}) take_lines(&bytes[begin], count);
  }
  EXPECT_EQ(bytes, before);
}

// The page after the writable one cannot be written.
TEST(TakeLines, WritesToEveryLineAndToNoOther) {
  if (!kCanTakeLines) GTEST_SKIP() << "not on this processor";
  constexpr std::size_t kPage = 4096;
  void* const pages =
      ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* const begin = static_cast<std::byte*>(pages);
  ASSERT_EQ(::mprotect(begin + kPage, kPage, PROT_READ), 0);
  take_lines(begin, kPage);
  take_lines(begin + kPage, 0);
  EXPECT_DEATH(take_lines(begin, kPage + 1), "");
  EXPECT_DEATH(take_lines(begin + kPage - kCacheLineBytes, kCacheLineBytes + 1), "");
  EXPECT_EQ(::munmap(pages, 2 * kPage), 0);
}

}  // namespace
}  // namespace stretto
