// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/view.h"

#include <array>
#include <type_traits>

#include <gtest/gtest.h>

namespace stretto {
namespace {

TEST(ViewTest, DefaultIsEmpty) {
  const View view;
  EXPECT_EQ(view.bytes(), 0u);
  EXPECT_TRUE(view.span().empty());
}

TEST(ViewTest, KnowsItsBytes) {
  std::array<float, 5> values{};
  const View view = view_of(std::span<float>(values));
  EXPECT_EQ(view.count, 5u);
  EXPECT_EQ(view.dtype, DType::f32);
  EXPECT_EQ(view.bytes(), 20u);
  EXPECT_EQ(view.span().data(), reinterpret_cast<std::byte*>(values.data()));
  EXPECT_EQ(view.span().size(), 20u);
}

TEST(ViewTest, ASliceCountsInElements) {
  std::array<std::int64_t, 6> values{};
  const View slice = view_of(std::span<std::int64_t>(values)).slice(2, 3);
  EXPECT_EQ(slice.data, reinterpret_cast<std::byte*>(&values[2]));
  EXPECT_EQ(slice.count, 3u);
  EXPECT_EQ(slice.dtype, DType::i64);
}

TEST(ViewTest, MutableBecomesConstantAndNotTheOtherWayRound) {
  std::array<Half, 3> values{};
  const View view = view_of(std::span<Half>(values));
  const ConstView constant = view;
  EXPECT_EQ(constant.data, view.data);
  EXPECT_EQ(constant.count, 3u);
  EXPECT_EQ(constant.dtype, DType::f16);
  EXPECT_FALSE((std::is_convertible_v<ConstView, View>));
}

TEST(ViewTest, ConstantElements) {
  const std::array<double, 2> values{1.0, 2.0};
  const ConstView view = const_view_of(std::span<const double>(values));
  EXPECT_EQ(view.bytes(), 16u);
  EXPECT_EQ(view.dtype, DType::f64);
}

}  // namespace
}  // namespace stretto
