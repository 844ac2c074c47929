// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench.h"

#include <gtest/gtest.h>

namespace stretto::tools {
namespace {

TEST(Bench, SaysWhatItCannotDo) {
  EXPECT_EQ(bench_command({"--explain", "--collective", "all_reduced"}), 2);
  EXPECT_EQ(bench_command({"--bytes", "many"}), 2);
  EXPECT_EQ(bench_command({"--help"}), 0);
}

}  // namespace
}  // namespace stretto::tools
