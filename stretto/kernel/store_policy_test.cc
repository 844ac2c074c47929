// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/store_policy.h"

#include <gtest/gtest.h>

namespace stretto::kernel {
namespace {

TEST(StorePolicyTest, TheCallersChoiceStands) {
  EXPECT_TRUE(is_non_temporal(Store::non_temporal, 1));
  EXPECT_FALSE(is_non_temporal(Store::cached, std::size_t{1} << 40));
}

TEST(StorePolicyTest, AutomaticLooksAtTheCache) {
  EXPECT_GE(last_level_cache_bytes(), std::size_t{64} << 10);
  EXPECT_EQ(last_level_cache_bytes(), last_level_cache_bytes());
  EXPECT_FALSE(is_non_temporal(Store::automatic, 4096));
  EXPECT_TRUE(is_non_temporal(Store::automatic, 2 * last_level_cache_bytes()));
}

}  // namespace
}  // namespace stretto::kernel
