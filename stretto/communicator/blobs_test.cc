// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/blobs.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"

namespace stretto {
namespace {

// A different length on each rank, none on rank 1.
Blob blob_of(int rank) {
  return Blob(static_cast<std::size_t>((rank - 1) * (rank - 1)) * 1000,
              static_cast<std::byte>(rank));
}

TEST(Blobs, ReachEverybodyWhateverTheirLength) {
  run_ranks(4, [](Communicator& comm) {
    const int rank = comm.rank().value();
    const auto all = all_gather_blobs(comm, blob_of(rank));
    ASSERT_EQ(all.size(), 4u);
    for (int r = 0; r < 4; ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], blob_of(r));
    EXPECT_EQ(broadcast_blob(comm, blob_of(rank), 3), blob_of(3));
    EXPECT_EQ(gather_blobs(comm, blob_of(rank), 2), rank == 2 ? all : std::vector<Blob>());
    EXPECT_EQ(scatter_blobs(comm, rank == 1 ? all : std::vector<Blob>(), 1), blob_of(rank));
  });
}

// The limit of rank `smallest` is lower than what the others would take.
void expect_refusals(int smallest) {
  run_ranks(3, [=](Communicator& comm) {
    const auto refused = [&](const auto& call) {
      try {
        call();
      } catch (const InvalidArgument& error) {
        return std::string(error.what());
      }
      return std::string("it was not refused");
    };
    const Blob own(comm.rank() == 2 ? 101 : 5);
    const BlobOptions options{.limit_bytes = comm.rank() == smallest ? 100u : 1000u};
    const std::string text = "the blob of rank 2 has 101 bytes; the limit is 100";
    EXPECT_NE(refused([&] { all_gather_blobs(comm, own, options); }).find(text), std::string::npos);
    EXPECT_NE(refused([&] { gather_blobs(comm, own, 0, options); }).find(text), std::string::npos);
    EXPECT_NE(refused([&] { broadcast_blob(comm, own, 2, options); }).find(text),
              std::string::npos);
    const std::vector<Blob> list = {Blob(1), Blob(1), Blob(101)};
    EXPECT_NE(refused([&] { scatter_blobs(comm, list, 0, options); }).find(text),
              std::string::npos);
    EXPECT_EQ(all_gather_blobs(comm, Blob(1)).size(), 3u);
  });
}

TEST(Blobs, OneThatIsTooLongForAnyRankFailsTheCallOnAllRanksAndNothingElse) {
  for (const int smallest : {0, 1, 2}) expect_refusals(smallest);
}

}  // namespace
}  // namespace stretto
