// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/state_broadcast.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"

namespace stretto::reducer {
namespace {

// Parts of these sizes travel in messages of `staging_bytes`.
void expect_roots_bytes(const std::vector<std::size_t>& sizes, std::size_t staging_bytes) {
  run_ranks(3, [&](Communicator& communicator) {
    StateBroadcast broadcast(communicator, std::nullopt, staging_bytes);
    const Rank root = 1;
    for (int round = 0; round < 2; ++round) {
      std::vector<std::vector<std::byte>> parts;
      std::vector<ByteSpan> spans;
      parts.reserve(sizes.size());
      for (const std::size_t size : sizes) {
        const int fill = communicator.rank() == root ? static_cast<int>(parts.size()) + round : 99;
        parts.emplace_back(size, static_cast<std::byte>(fill));
        spans.emplace_back(parts.back());
      }
      broadcast.run(spans, root);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto expected = static_cast<std::byte>(static_cast<int>(i) + round);
        EXPECT_EQ(parts[i], std::vector<std::byte>(sizes[i], expected)) << "part " << i;
      }
    }
  });
}

TEST(StateBroadcast, ManySmallPartsInOneMessage) { expect_roots_bytes({3, 0, 1, 100, 7}, 4096); }

TEST(StateBroadcast, PartsMaySpanMessages) { expect_roots_bytes({10, 1000, 0, 64, 64}, 64); }

TEST(StateBroadcast, NothingToSend) { expect_roots_bytes({}, 64); }

TEST(StateBroadcast, OnlyEmptyParts) { expect_roots_bytes({0, 0}, 64); }

}  // namespace
}  // namespace stretto::reducer
