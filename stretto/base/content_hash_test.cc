// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/content_hash.h"

#include <cstddef>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace stretto {
namespace {

TEST(ContentHash, EveryBitOfEveryLengthCounts) {
  for (const std::size_t size : {1u, 7u, 8u, 31u, 32u, 33u, 100u}) {
    std::vector<std::byte> bytes(size);
    std::set<std::uint64_t> seen = {content_hash(bytes)};
    for (std::size_t bit = 0; bit < size * 8; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_TRUE(seen.insert(content_hash(bytes)).second) << size << " bytes, bit " << bit;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(ContentHash, LengthCountsWhereContentIsZero) {
  std::set<std::uint64_t> seen;
  for (std::size_t size = 0; size < 200; ++size) {
    EXPECT_TRUE(seen.insert(content_hash(std::vector<std::byte>(size))).second) << size;
  }
}

TEST(ContentHash, OrderOfWordsAndSeedCount) {
  const std::vector<std::uint64_t> a = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<std::uint64_t> b = {5, 6, 7, 8, 1, 2, 3, 4};
  const auto hash = [](const auto& words, std::uint64_t seed) {
    return content_hash(std::as_bytes(std::span(words)), seed);
  };
  EXPECT_NE(hash(a, 0), hash(b, 0));
  EXPECT_NE(hash(a, 0), hash(a, 1));
  EXPECT_EQ(hash(a, 7), hash(std::vector<std::uint64_t>(a), 7));
}

}  // namespace
}  // namespace stretto
