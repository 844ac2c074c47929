// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/state_exchange.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"

namespace stretto::reducer {
namespace {

TEST(ShareOut, LargestFirstToWhoHasLeast) {
  const std::vector<std::size_t> bytes = {10, 70, 40, 0, 30};
  const std::vector<Rank> owners = share_out(bytes, 2);
  // 70 go to rank 0; 40 and 30 to rank 1; 10 to rank 0, since both then have 70; 0 to rank 1.
  EXPECT_EQ(owners, (std::vector<Rank>{Rank(0), Rank(0), Rank(1), Rank(1), Rank(1)}));
  EXPECT_TRUE(share_out({}, 3).empty());
}

// Returns the content of part `part` on its owner.
std::vector<std::uint8_t> content(std::size_t part, std::size_t bytes) {
  std::vector<std::uint8_t> result(bytes);
  std::iota(result.begin(), result.end(), static_cast<std::uint8_t>(17 * part));
  return result;
}

void expect_all_have_all(int ranks, std::vector<std::size_t> sizes, std::vector<int> owned_by,
                         std::size_t staging_bytes) {
  run_ranks(ranks, [&](Communicator& communicator) {
    StateExchange exchange(communicator, std::nullopt, staging_bytes);
    const std::vector<Rank> owners(owned_by.begin(), owned_by.end());
    for (int time = 0; time < 2; ++time) {
      std::vector<std::vector<std::uint8_t>> parts;
      std::vector<ByteSpan> spans;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const bool own = owners[i] == communicator.rank();
        parts.push_back(own ? content(i, sizes[i]) : std::vector<std::uint8_t>(sizes[i], 255));
      }
      for (auto& part : parts) {
        spans.emplace_back(reinterpret_cast<std::byte*>(part.data()), part.size());
      }
      exchange.run(spans, owners);
      for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(parts[i], content(i, sizes[i]));
    }
  });
}

TEST(StateExchange, EachPartIsThatOfItsOwner) {
  expect_all_have_all(3, {100, 0, 7, 300, 5}, {0, 1, 2, 1, 0}, 1 << 20);
}

TEST(StateExchange, SmallMemoryMakesManyMessages) {
  expect_all_have_all(3, {100, 0, 7, 300, 5}, {0, 1, 2, 1, 0}, 10);
  expect_all_have_all(2, {33}, {1}, 0);
}

TEST(StateExchange, WhoOwnsNothingListens) {
  expect_all_have_all(3, {64, 64}, {2, 2}, 1 << 20);
  expect_all_have_all(2, {}, {}, 1 << 20);
}

}  // namespace
}  // namespace stretto::reducer
