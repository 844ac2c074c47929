// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/memory.h"

#include <gtest/gtest.h>

#include <limits>

namespace stretto::transport {
namespace {

TEST(RegionTableTest, FindsOnlyWhatLiesInside) {
  std::vector<std::byte> memory(100);
  RegionTable table;
  table.insert(3, memory);
  constexpr auto kHuge = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(table.find({3, 0}, 100), memory.data());
  EXPECT_EQ(table.find({3, 100}, 0), memory.data() + 100);
  EXPECT_EQ(table.find({3, 0}, 101), nullptr);
  EXPECT_EQ(table.find({3, 101}, 0), nullptr);
  EXPECT_EQ(table.find({3, 99}, 2), nullptr);
  EXPECT_EQ(table.find({3, kHuge}, 1), nullptr);
  EXPECT_EQ(table.find({3, kHuge - 50}, 100), nullptr);
  EXPECT_EQ(table.find({3, 1}, kHuge), nullptr);
  EXPECT_EQ(table.find({4, 0}, 1), nullptr);
}

TEST(RegionTableTest, LocatesOnlyWhatLiesInside) {
  std::vector<std::byte> memory(100);
  RegionTable table;
  table.insert(3, ByteSpan(memory).first(40));
  table.insert(4, ByteSpan(memory).subspan(40));
  EXPECT_EQ(table.locate(memory.data(), 40).region, 3u);
  EXPECT_EQ(table.locate(memory.data() + 40, 60).region, 4u);
  EXPECT_EQ(table.locate(memory.data() + 50, 1).offset_bytes, 10u);
  EXPECT_FALSE(table.locate(memory.data() + 39, 2).valid()) << "in two regions";
  EXPECT_FALSE(table.locate(memory.data() + 99, 2).valid());
  EXPECT_FALSE(table.locate(memory.data(), std::numeric_limits<std::size_t>::max()).valid());
  EXPECT_FALSE(table.locate(nullptr, 1).valid());
}

TEST(RegionTableTest, ErasesAndReplaces) {
  std::vector<std::byte> a(10);
  std::vector<std::byte> b(20);
  RegionTable table;
  table.insert(1, a);
  // A peer may use a number twice: the old bytes must not stay reachable under it.
  table.insert(1, b);
  EXPECT_EQ(table.find({1, 0}, 1), b.data());
  EXPECT_EQ(table.erase(1).data(), b.data());
  EXPECT_EQ(table.find({1, 0}, 0), nullptr);
  EXPECT_TRUE(table.erase(1).empty());
}

TEST(PrivateMemoryTest, IsReachedByNobody) {
  PrivateMemory memory;
  const Region region = memory.allocate(100).or_throw();
  EXPECT_EQ(region.bytes.size(), 100u);
  EXPECT_FALSE(region.address.valid());
  EXPECT_FALSE(memory.locate(region.bytes.data(), 1).valid());
  EXPECT_EQ(memory.resolve(0, region.address, 1), nullptr);
  EXPECT_FALSE(memory.reaches(0));
}

}  // namespace
}  // namespace stretto::transport
