// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/byte_exchange.h"

#include <string>

#include <gtest/gtest.h>

#include "stretto/base/rank_vector.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

// Returns 1000 bytes for ranks 0 and 2, none for rank 1, and 4000 for rank 3.
ByteVector bytes_of(int rank) {
  return ByteVector(static_cast<std::size_t>((rank - 1) * (rank - 1)) * 1000,
                    static_cast<std::byte>(rank));
}

TEST(ByteExchange, ReachEverybodyWhateverTheirLength) {
  run_ranks(4, [](Communicator& comm, int rank) {
    const RankVector<ByteVector> all = all_gather_bytes(comm, bytes_of(rank));
    ASSERT_EQ(all.size(), 4u);
    for (int r = 0; r < 4; ++r) EXPECT_EQ(all[r], bytes_of(r));
    EXPECT_EQ(broadcast_bytes(comm, bytes_of(rank), 3), bytes_of(3));
    EXPECT_EQ(gather_bytes(comm, bytes_of(rank), 2), rank == 2 ? all : RankVector<ByteVector>());
    EXPECT_EQ(scatter_bytes(comm, rank == 1 ? all : RankVector<ByteVector>(), 1), bytes_of(rank));
  });
}

// The limit of rank `smallest` is lower than that of the others.
void expect_refusals(int smallest) {
  run_ranks(3, [=](Communicator& comm) {
    const ByteVector own(comm.rank() == 2 ? 101 : 5);
    const ByteExchangeOptions options{.limit_bytes = comm.rank() == smallest ? 100u : 1000u};
    const std::string text = "rank 2 passes 101 bytes; the limit is 100";
    expect_contains(
        testing::error_of<InvalidArgument>([&] { all_gather_bytes(comm, own, options); }), text);
    expect_contains(
        testing::error_of<InvalidArgument>([&] { gather_bytes(comm, own, 0, options); }), text);
    expect_contains(
        testing::error_of<InvalidArgument>([&] { broadcast_bytes(comm, own, 2, options); }), text);
    const std::vector<ByteVector> list = {ByteVector(1), ByteVector(1), ByteVector(101)};
    expect_contains(
        testing::error_of<InvalidArgument>([&] { scatter_bytes(comm, list, 0, options); }), text);
    EXPECT_EQ(all_gather_bytes(comm, ByteVector(1)).size(), 3u);
  });
}

TEST(ByteExchange, OneThatIsTooLongForAnyRankFailsTheCallOnAllRanksAndNothingElse) {
  for (const int smallest : {0, 1, 2}) expect_refusals(smallest);
}

}  // namespace
}  // namespace stretto
