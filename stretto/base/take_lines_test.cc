// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/take_lines.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace stretto
