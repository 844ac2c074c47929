// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/chunk_owners.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::schedule {
namespace {

using Hosts = std::vector<std::int32_t>;

HostLayout layout_of(const Hosts& hosts) {
  return HostLayout({.rank_count = static_cast<std::int32_t>(hosts.size()), .hosts = hosts});
}

std::vector<std::vector<Subtree>> subtrees_of(const Hosts& hosts) {
  return subtrees_by_host(layout_of(hosts), static_cast<int>(hosts.size()));
}

// In chunks, what the busiest port sends or receives if `owners` own them.
int busiest_port(const std::vector<std::vector<Subtree>>& subtrees,
                 const std::vector<int>& owners) {
  const auto hosts = static_cast<int>(subtrees.size());
  int values = 0;
  for (const auto& of_host : subtrees) values += static_cast<int>(of_host.size());
  int most = 0;
  for (int host = 0; host < hosts; ++host) {
    const auto owned = static_cast<int>(std::ranges::count(owners, host));
    const auto others = static_cast<int>(owners.size()) - owned;
    const auto own = static_cast<int>(subtrees[static_cast<std::size_t>(host)].size());
    most = std::max({most, owned * (hosts - 1) + others * own, owned * (values - own) + others});
  }
  return most;
}

int best_of_two_hosts(const std::vector<std::vector<Subtree>>& subtrees, int chunks) {
  int best = busiest_port(subtrees, std::vector<int>(static_cast<std::size_t>(chunks), 0));
  for (int first = 0; first <= chunks; ++first) {
    std::vector<int> owners(static_cast<std::size_t>(chunks), 1);
    std::fill_n(owners.begin(), first, 0);
    best = std::min(best, busiest_port(subtrees, owners));
  }
  return best;
}

TEST(ChunkOwners, EqualHostsTakeTurns) {
  EXPECT_EQ(owner_hosts(subtrees_of({0, 0, 1, 1}), 4), (std::vector{0, 1, 0, 1}));
  EXPECT_EQ(owner_hosts(subtrees_of({0, 1, 0, 1}), 4), (std::vector{0, 1, 0, 1}));
  EXPECT_EQ(owner_hosts(subtrees_of({0, 1, 2}), 3), (std::vector{0, 1, 2}));
  EXPECT_EQ(owner_hosts(subtrees_of({0, 0}), 2), (std::vector{0, 0}));
}

TEST(ChunkOwners, WhoWouldSendTwoValuesOwnsEverything) {
  // Of the tree ((0 1) (2 3)) the first host has (0 1) and 2: two values, the second one has one.
  const auto subtrees = subtrees_of({0, 0, 0, 1});
  ASSERT_EQ(subtrees[0].size(), 2U);
  const std::vector<int> owners = owner_hosts(subtrees, 4);
  EXPECT_EQ(owners, (std::vector{0, 0, 0, 0}));
  // Each way the whole buffer, once; where hosts take turns it is one and a half times that.
  EXPECT_EQ(busiest_port(subtrees, owners), 4);
  EXPECT_EQ(busiest_port(subtrees, {0, 1, 0, 1}), 6);
}

TEST(ChunkOwners, TheBusiestPortOfTwoHostsIsAsIdleAsItCanBe) {
  for (std::uint32_t ranks = 2; ranks <= 9; ++ranks) {
    for (std::uint32_t layout = 1; layout < (1U << (ranks - 1)); ++layout) {
      Hosts hosts;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        hosts.push_back(static_cast<std::int32_t>((layout << 1 >> r) & 1));
      }
      const auto subtrees = subtrees_of(hosts);
      const int chunks = chunk_count_for(static_cast<int>(ranks), 2);
      const int busiest = busiest_port(subtrees, owner_hosts(subtrees, chunks));
      EXPECT_LE(busiest, best_of_two_hosts(subtrees, chunks) + 1) << ranks << " of " << layout;
    }
  }
}

}  // namespace
}  // namespace stretto::schedule
