// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/symmetric_memory.h"

#include <array>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "stretto/base/random.h"
#include "stretto/base/rank_vector.h"
#include "stretto/communicator/all_gather_value.h"
#include "stretto/job/threads.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/rank_list.h"

namespace stretto {
namespace {

using HostList = std::vector<std::int32_t>;

void on_hosts(const HostList& hosts, const std::function<void(Communicator&)>& body) {
  testing::on_all(make_thread_ranks({.size = static_cast<int>(hosts.size()),
                                     .timeout = std::chrono::seconds(20),
                                     .hosts = hosts}),
                  body);
}

class OneSided : public ::testing::TestWithParam<HostList> {};

TEST_P(OneSided, MemoryOfAHostIsMappedAndAllOfItIsZeroAtFirst) {
  const HostList& hosts = GetParam();
  on_hosts(hosts, [&](Communicator& comm) {
    const SymmetricBuffer<std::int32_t> numbers(comm, 5);
    for (int r = 0; r < comm.size(); ++r) {
      const bool is_mapped =
          hosts[static_cast<std::size_t>(r)] == hosts[static_cast<std::size_t>(comm.rank())];
      EXPECT_EQ(numbers.span(Rank(r)).size(), is_mapped ? 5u : 0u);
      for (const std::int32_t number : numbers.span(Rank(r))) EXPECT_EQ(number, 0);
    }
  });
}

// Each rank's memory is cut in pieces. In each epoch, either one rank puts values that no other
// epoch has into a piece, or all ranks get the piece and know the values that they expect.
TEST_P(OneSided, WhatIsPutIsThereAfterTheFenceAndWhatIsGotIsWhatWasThere) {
  constexpr std::size_t kElements = 1000;
  constexpr std::size_t kPieces = 20;
  constexpr std::size_t kPiece = kElements / kPieces;
  on_hosts(GetParam(), [&](Communicator& comm) {
    SymmetricBuffer<std::uint32_t> memory(comm, kElements);
    RankVector<std::vector<std::uint32_t>> expected(comm.size());
    for (auto& of : expected) of.resize(kElements);
    Random random(1);  // The same on all ranks.
    for (std::uint32_t epoch = 1; epoch <= 30; ++epoch) {
      std::vector<std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>>> got;
      got.reserve(kPieces * static_cast<std::size_t>(comm.size()));
      for (int target = 0; target < comm.size(); ++target) {
        for (std::size_t piece = 0; piece < kPieces; ++piece) {
          const auto writer =
              static_cast<int>(random.next() % (2 * static_cast<unsigned>(comm.size())));
          const std::size_t length = random.next() % (kPiece + 1);
          const auto place = std::span(expected[target]).subspan(piece * kPiece, length);
          if (writer >= comm.size()) {
            auto& [there, here] = got.emplace_back(std::vector(place.begin(), place.end()),
                                                   std::vector<std::uint32_t>(length));
            memory.get(here, target, piece * kPiece);
            continue;
          }
          std::iota(place.begin(), place.end(), epoch * 100000 + static_cast<unsigned>(writer));
          if (writer != comm.rank().value()) continue;
          std::vector<std::uint32_t> values(place.begin(), place.end());
          memory.put(values, target, piece * kPiece);
          std::ranges::fill(values, 77);  // put() has copied them.
        }
      }
      memory.fence();
      for (const auto& [there, here] : got) ASSERT_EQ(here, there) << epoch;
      for (int r = 0; r < comm.size(); ++r) {
        const auto mapped = memory.span(Rank(r));
        if (mapped.empty()) continue;
        ASSERT_TRUE(std::ranges::equal(mapped, expected[r])) << epoch << ", rank " << r;
      }
      memory.fence();
    }
  });
}

TEST_P(OneSided, ARankThatNamesAnotherSizeIsToldByAllAndTheCommunicatorGoesOn) {
  on_hosts(GetParam(), [](Communicator& comm) {
    const bool is_last = comm.rank().value() == comm.size() - 1;
    if (comm.size() == 1) return;
    const auto make = [&] { SymmetricMemory(comm, is_last ? 9 : 8); };
    expect_contains(testing::error_of<InvalidArgument>(make),
                    is_last
                        ? "rank 0 names 8 bytes, and this rank 9"
                        : fmt::format("rank {} names 9 bytes, and this rank 8", comm.size() - 1));
    SymmetricMemory(comm, 8).fence();
  });
}

TEST_P(OneSided, ARankThatHasNoRoomIsNamed) {
  on_hosts(GetParam(), [](Communicator& comm) {
    // All ranks name the same size, which is more than there is.
    const auto make = [&] {
      SymmetricBuffer<double>(comm, std::numeric_limits<std::size_t>::max() / 2);
    };
    expect_contains(testing::error_of<OutOfMemory>(make), "18446744073709551615 bytes");
    SymmetricMemory(comm, 0).fence();
  });
}

TEST_P(OneSided, WhatDoesNotLieInTheMemoryIsRefusedBeforeAnythingHappens) {
  on_hosts(GetParam(), [](Communicator& comm) {
    SymmetricBuffer<std::int64_t> memory(comm, 4);
    std::array<std::int64_t, 3> three{};
    for (const std::size_t first :
         {std::size_t{2}, std::size_t{5}, std::numeric_limits<std::size_t>::max() / 8 + 2}) {
      expect_contains(testing::error_of<InvalidArgument>([&] { memory.put(three, 0, first); }),
                      "do not lie in the 32 bytes of rank 0");
      expect_contains(testing::error_of<InvalidArgument>([&] { memory.get(three, 0, first); }),
                      "do not lie in the 32 bytes of rank 0");
    }
    for (const int rank : {-1, comm.size()}) {
      expect_contains(testing::error_of<InvalidArgument>([&] { memory.put(three, rank, 0); }),
                      fmt::format("rank {} is not one of {} ranks", rank, comm.size()));
    }
    memory.fence();
    EXPECT_EQ(std::accumulate(memory.span().begin(), memory.span().end(), 0), 0);
  });
}

TEST_P(OneSided, ManyMegabytesMove) {
  on_hosts(GetParam(), [](Communicator& comm) {
    constexpr std::size_t kBytes = 5'000'001;
    SymmetricMemory memory(comm, kBytes);
    const Rank next = (comm.rank().value() + 1) % comm.size();
    const Rank previous = (comm.rank().value() + comm.size() - 1) % comm.size();
    memory.put(std::vector(kBytes, static_cast<std::byte>(comm.rank().value() + 1)), next, 0);
    memory.fence();
    EXPECT_EQ(memory.span().back(), static_cast<std::byte>(previous.value() + 1));
    std::vector<std::byte> got(kBytes);
    memory.get(got, next, 0);
    memory.fence();
    EXPECT_EQ(got, std::vector(kBytes, static_cast<std::byte>(comm.rank().value() + 1)));
  });
}

TEST_P(OneSided, AnAbortEndsAFence) {
  on_hosts(GetParam(), [](Communicator& comm) {
    if (comm.size() == 1) return;
    const auto go_on = [&] {
      SymmetricMemory memory(comm, 8);
      memory.fence();
      if (comm.rank() == 0) comm.abort("as planned");
      memory.fence();
    };
    expect_contains(testing::error_of<Aborted>(go_on), "as planned");
  });
}

// Returns what `call` throws on rank 2. It runs in a group where rank 2 has number 0, and rank 0,
// which runs `something_else`, has number 1.
template <class Failure>
Status failure_in_group(const std::function<void(Communicator&)>& call,
                        const std::function<void(Communicator&)>& something_else) {
  Status status;
  on_hosts({0, 1, 2}, [&](Communicator& comm) {
    const auto group = comm.new_group({2, 0});
    if (comm.rank() == 2) status = testing::failure_of<Failure>([&] { call(*group); });
    if (comm.rank() == 0) something_else(*group);
  });
  return status;
}

TEST(OneSidedFailures, NameARankWithoutRoomByItsNumberInTheJob) {
  const auto make = [](Communicator& group) { SymmetricMemory(group, 8); };
  const Status status = failure_in_group<OutOfMemory>(make, [](Communicator& group) {
    // Tells the others that this rank lacks the 8 bytes.
    (void)communicator::all_gather_value(group, std::array<std::uint64_t, 4>{8}, std::nullopt);
  });
  EXPECT_EQ(status.message(), "rank 2: symmetric memory: rank 0 has no room for 8 bytes");
  EXPECT_EQ(status.rank(), Rank(0));
}

// Instead of a fence, announces `request_bytes` bytes of puts and gets, and sends five bytes.
void break_fence(Communicator& group, std::uint64_t request_bytes) {
  const SymmetricMemory memory(group, 8);
  const std::array lengths = {request_bytes, std::uint64_t{0}};
  std::array<std::uint64_t, 2> incoming{};
  const std::array<std::byte, 5> five{};
  const std::string text = testing::error_of<Aborted>([&] {
    group.all_to_all(lengths, incoming).wait();
    group.all_to_all_list(std::array{as_input(five), ConstView()}, std::array<View, 2>()).wait();
    group.barrier().wait();
  });
  expect_contains(text, "rank 2 aborted: rank 2: fence: ");
}

TEST(OneSidedFailures, OfAFenceNameRanksByTheirNumbersInTheJob) {
  const auto fence = [](Communicator& group) { SymmetricMemory(group, 8).fence(); };
  const Status room = failure_in_group<OutOfMemory>(fence, [](Communicator& group) {
    break_fence(group, std::numeric_limits<std::uint64_t>::max());
  });
  EXPECT_EQ(room.message(),
            "rank 2: fence: there is no room for 18446744073709551615 bytes of rank 0");
  EXPECT_EQ(room.rank(), Rank(2));
  const Status nonsense =
      failure_in_group<ProtocolError>(fence, [](Communicator& group) { break_fence(group, 5); });
  EXPECT_EQ(nonsense.message(),
            "rank 2: fence: what rank 0 has put, or wants to get, makes no sense");
  EXPECT_EQ(nonsense.rank(), Rank(0));
}

INSTANTIATE_TEST_SUITE_P(, OneSided,
                         ::testing::Values(HostList{0}, HostList{0, 0, 0}, HostList{0, 1},
                                           HostList{0, 1, 0, 1}, HostList{0, 0, 1},
                                           HostList{0, 1, 2, 3, 4}),
                         [](const auto& tested) {
                           return fmt::format("{}", fmt::join(tested.param, ""));
                         });

}  // namespace
}  // namespace stretto
