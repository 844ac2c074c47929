// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench.h"

#include <gtest/gtest.h>

namespace stretto::tools {
namespace {

TEST(Bench, BytesReadAsPeopleWriteThem) {
  EXPECT_EQ(format_bytes(8), "8 B");
  EXPECT_EQ(format_bytes(64 * 1024), "64 KiB");
  EXPECT_EQ(format_bytes(1536), "1536 B");
  EXPECT_EQ(format_bytes(std::size_t{3} << 30), "3 GiB");
}

TEST(Bench, SaysWhatItCannotDo) {
  EXPECT_EQ(bench_command({}), 2);
  EXPECT_EQ(bench_command({"--explain", "--collective", "all_reduced"}), 2);
  EXPECT_EQ(bench_command({"--help"}), 0);
}

}  // namespace
}  // namespace stretto::tools
