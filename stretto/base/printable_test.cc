// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/printable.h"

#include <gtest/gtest.h>

namespace stretto {
namespace {

TEST(Printable, KeepsWhatATerminalShowsAndNothingElse) {
  EXPECT_EQ(printable("rank 1 (node04 pid 8812): all_reduce(sum f32 [4]) ~#!"),
            "rank 1 (node04 pid 8812): all_reduce(sum f32 [4]) ~#!");
  EXPECT_EQ(printable("\x1b]0;title\x07 \x1b[31mred\x1b[0m\x7f\x80\xff\r"),
            "?]0;title? ?[31mred?[0m????");
  EXPECT_EQ(printable("two\nlines\tand a tab"), "two lines and a tab");
  EXPECT_EQ(printable(std::string("\0x", 2)), "?x");
}

}  // namespace
}  // namespace stretto
