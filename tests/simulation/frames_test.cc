// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// That ranks which agree pay nothing for finding out: a collective sends the messages of its
// schedule and no other, the first time and the second.

#include <gtest/gtest.h>

#include <algorithm>

#include "stretto/schedule/algorithms.h"
#include "tests/simulation/simulation.h"

namespace stretto::simulation {
namespace {

constexpr int kRanks = 5;
constexpr Rank kRoot = 2;

// Everybody's buffers, which are small, so that nothing asks for leave to come and nothing is cut.
struct Buffers {
  std::vector<float> one = std::vector<float>(8);
  std::vector<float> all = std::vector<float>(8 * kRanks);
  std::vector<float> other = std::vector<float>(8 * kRanks);
};

Work begin(Communicator& comm, Buffers& buffers, Collective collective, const std::string& name) {
  switch (collective) {
    case Collective::all_reduce:
      return comm.all_reduce(buffers.all, {.algorithm = name});
    case Collective::reduce:
      return comm.reduce(buffers.all, {.root = kRoot, .algorithm = name});
    case Collective::reduce_scatter:
      return comm.reduce_scatter(buffers.all, buffers.one, {.algorithm = name});
    case Collective::all_gather:
      return comm.all_gather(buffers.one, buffers.all, {.algorithm = name});
    case Collective::gather:
      return comm.gather(buffers.one, buffers.all, {.root = kRoot, .algorithm = name});
    case Collective::scatter:
      return comm.scatter(buffers.all, buffers.one, {.root = kRoot, .algorithm = name});
    case Collective::broadcast:
      return comm.broadcast(buffers.all, {.root = kRoot, .algorithm = name});
    case Collective::all_to_all:
      return comm.all_to_all(buffers.all, buffers.other, {.algorithm = name});
    default:
      return comm.barrier({.algorithm = name});
  }
}

std::uint64_t messages_of(const schedule::Algorithm& algorithm) {
  std::uint64_t messages = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const schedule::Schedule steps =
        algorithm.build({.rank = rank, .rank_count = kRanks, .root = kRoot});
    messages += static_cast<std::uint64_t>(
        std::ranges::count(steps.steps, schedule::StepKind::send, &schedule::Step::kind));
  }
  return messages;
}

class Frames : public testing::TestWithParam<schedule::Algorithm> {};

TEST_P(Frames, ACollectiveSendsWhatItsScheduleSaysAndNothingElse) {
  const schedule::Algorithm& algorithm = GetParam();
  Simulation simulation({.ranks = kRanks, .seed = 7});
  std::vector<Buffers> buffers(kRanks);
  simulation.run();
  for (const int time : {1, 2, 3}) {
    const std::uint64_t before = simulation.network().frames();
    for (int rank = 0; rank < kRanks; ++rank) {
      simulation.submit(rank, [&, rank](Communicator& comm) {
        return begin(comm, buffers[static_cast<std::size_t>(rank)], algorithm.collective,
                     std::string(algorithm.name));
      });
    }
    simulation.run();
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto outcome = simulation.outcomes(rank).back();
      ASSERT_TRUE(outcome && outcome->ok()) << (outcome ? outcome->message() : "has not ended");
    }
    EXPECT_EQ(simulation.network().frames() - before, messages_of(algorithm)) << "time " << time;
  }
}

std::vector<schedule::Algorithm> by_messages() {
  std::vector<schedule::Algorithm> list;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.access == schedule::Access::messages) list.push_back(algorithm);
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(, Frames, testing::ValuesIn(by_messages()), [](const auto& tested) {
  return std::string(name(tested.param.collective)) + "_" + std::string(tested.param.name);
});

}  // namespace
}  // namespace stretto::simulation
