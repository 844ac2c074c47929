// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/planner.h"

#include <gtest/gtest.h>

namespace stretto::group {
namespace {

// What has to be cleared first would wait behind all that goes the other way.
TEST(Planner, MessagesOfTwoLevelsLeaveWithoutTheirReceive) {
  const Planner planner({.selector = {.rank_count = 4, .hosts = {0, 0, 0, 1}, .has_teams = true}});
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i8}) {
    const OperationDescriptor operation{
        .collective = Collective::all_reduce, .dtype = dtype, .count = 4 << 20};
    const Plans plans = planner.plan(operation, std::nullopt, "two_level_mapped").or_throw();
    const std::size_t elements = plans.messages->segment_bytes() / size_bytes(dtype);
    const std::size_t longest_bytes = elements * size_bytes(accumulation_dtype(dtype));
    EXPECT_LE(longest_bytes, transport::kEagerBytes) << name(dtype);
    EXPECT_GT(longest_bytes, transport::kEagerBytes / 2) << name(dtype);
  }
}

}  // namespace
}  // namespace stretto::group
