// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstddef>
#include <cstring>

#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/kernel/copy.h"
#include "stretto/kernel/guarded_bytes.h"

namespace stretto::kernel {
namespace {

TEST(CopyTest, CopiesTheBytesAndNoOthers) {
  Random random(1);
  for (const std::size_t bytes : {1, 3, 63, 64, 65, 127, 128, 129, 1000, 4096, 70001}) {
    for (const Store store : {Store::automatic, Store::cached, Store::non_temporal}) {
      for (int attempt = 0; attempt < 4; ++attempt) {
        GuardedBytes from(bytes, random.below(64)), to(bytes, random.below(64));
        for (std::size_t i = 0; i < bytes; ++i) from.data()[i] = std::byte(random.below(256));
        copy(to.data(), from.data(), bytes, store);
        ASSERT_EQ(std::memcmp(to.data(), from.data(), bytes), 0) << bytes;
        ASSERT_TRUE(to.strips_are_untouched()) << bytes;
      }
    }
  }
}

TEST(CopyTest, NothingIsCopiedFromNowhere) {
  copy(nullptr, nullptr, 0, Store::cached);
  copy(nullptr, nullptr, 0, Store::non_temporal);
}

TEST(StorePolicyTest, TheCallersChoiceStands) {
  EXPECT_TRUE(is_non_temporal(Store::non_temporal, 1));
  EXPECT_FALSE(is_non_temporal(Store::cached, std::size_t{1} << 40));
}

TEST(StorePolicyTest, AutomaticLooksAtTheCache) {
  EXPECT_GE(last_level_cache_bytes(), std::size_t{64} << 10);
  EXPECT_FALSE(is_non_temporal(Store::automatic, 4096));
  EXPECT_TRUE(is_non_temporal(Store::automatic, 2 * last_level_cache_bytes()));
}

}  // namespace
}  // namespace stretto::kernel
