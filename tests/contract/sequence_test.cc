// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The numbers of collectives begin again after the last one, which a job reaches after some days.

#include <array>
#include <chrono>
#include <vector>

#include <gtest/gtest.h>

#include "tests/contract/world_ranks.h"
#include "tests/support/failures.h"

namespace stretto::testing {
namespace {

using transport::kSetUpSequence;

TEST(Sequence, IsOrderedBeyondTheLastNumber) {
  EXPECT_EQ(transport::sequence_after(1), 2u);
  EXPECT_EQ(transport::sequence_after(kSetUpSequence - 1), 1u);
  EXPECT_EQ(transport::sequence_after(kSetUpSequence), kSetUpSequence + 1);
  const std::array<std::uint32_t, 4> near = {kSetUpSequence - 3, kSetUpSequence - 1, 1, 5};
  for (std::size_t a = 0; a < near.size(); ++a) {
    for (std::size_t b = 0; b < near.size(); ++b) {
      EXPECT_EQ(transport::precedes(near[a], near[b]), a < b) << near[a] << " " << near[b];
    }
  }
  EXPECT_TRUE(transport::precedes(kSetUpSequence, kSetUpSequence + 2));
  EXPECT_FALSE(transport::precedes(kSetUpSequence + 2, kSetUpSequence));
}

// The tenth collective has the last number.
constexpr std::uint32_t kBefore = 10;

class SequencesRunOut : public ::testing::TestWithParam<transport::WorldKind> {
 protected:
  static RankList make(int size) {
    transport::World world = GetParam().make({.ranks = size});
    return make_ranks(
        world.endpoints,
        {.heartbeat = std::chrono::milliseconds(50), .first_sequence = kSetUpSequence - kBefore},
        {.timeout = std::chrono::seconds(30)});
  }
};
INSTANTIATE_TEST_SUITE_P(, SequencesRunOut,
                         ::testing::ValuesIn(transport::world_kinds_for_groups()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(SequencesRunOut, AndCollectivesGoOn) {
  on_all(make(3), [](Communicator& comm) {
    const std::vector<Rank> everybody = {0, 1, 2};
    std::vector<float> data(100);
    std::vector<float> large(200'000);
    for (int round = 0; round < 20; ++round) {
      expect_sums(comm, comm.rank(), everybody, round % 5 == 4 ? large : data, round);
      if (comm.rank() == 1 && round % 4 == 0) comm.poll();
    }
    // Operations also pass the last number while others are in flight.
    const auto group = comm.split({.color = 0});
    std::vector<std::vector<float>> many(3 * kBefore, std::vector<float>(1000, 1));
    std::vector<Work> works;
    for (auto& each : many) works.push_back(group->all_reduce(each));
    for (Work& work : works) work.wait();
    for (const auto& each : many) EXPECT_EQ(each.back(), 3);
    Work last = comm.barrier();
    last.wait();
    EXPECT_LT(last.number(), 100u);
  });
}

TEST_P(SequencesRunOut, AndFailuresNameTheOperation) {
  on_all(make(3), [](Communicator& comm) {
    std::vector<float> data(100);
    for (std::uint32_t i = 0; i < kBefore + 1; ++i) comm.all_reduce(data).wait();
    const std::string text = error_of<Mismatch>([&] {
      comm.rank() == 2 ? comm.broadcast(data, {.root = 0}).wait() : comm.all_reduce(data).wait();
      // A rank whose part had ended before anybody noticed hears of it in its next call.
      comm.barrier().wait();
    });
    expect_contains(text, "rank 2 called broadcast");
    expect_contains(text, "#2");
  });
}

}  // namespace
}  // namespace stretto::testing
