// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "stretto/schedule/cost.h"
#include "stretto/schedule/verify/verify.h"
#include "tests/support/broken_schedules.h"
#include "tests/support/hosts.h"
#include "tests/support/seed.h"

namespace stretto::schedule {
namespace {

using testing::Hosts;
using testing::hosts_in_turns;

// Returns those by messages, and those on mapped memory inside hosts.
std::vector<const Algorithm*> two_level_algorithms() {
  std::vector<const Algorithm*> found;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name.starts_with("two_level")) found.push_back(&algorithm);
  }
  return found;
}

std::vector<const Algorithm*> two_level_algorithms(Collective collective) {
  std::vector<const Algorithm*> found = two_level_algorithms();
  std::erase_if(found, [=](const Algorithm* a) { return a->collective != collective; });
  return found;
}

const Algorithm& two_level(Collective collective) { return *two_level_algorithms(collective)[0]; }

Hosts contiguous(const std::vector<int>& sizes) {
  Hosts hosts;
  for (std::size_t host = 0; host < sizes.size(); ++host) {
    hosts.insert(hosts.end(), static_cast<std::size_t>(sizes[host]),
                 static_cast<std::int32_t>(host));
  }
  return hosts;
}

void expect_correct(const Hosts& hosts, Rank root, const std::string& what) {
  for (const Algorithm* algorithm : two_level_algorithms()) {
    // An all_to_all has a chunk for each pair of ranks. is_proved_by_tests() says the limit.
    if (algorithm->collective == Collective::all_to_all && hosts.size() > 16) continue;
    const Rank used = has_root(algorithm->collective) ? root : 0;
    const int ranks = static_cast<int>(hosts.size());
    const Status status = verify(algorithm->build_all(ranks, used, hosts));
    ASSERT_TRUE(status.ok()) << status.message() << " from " << used.value() << " on hosts "
                             << fmt::format("{}, {}", fmt::join(hosts, " "), what);
  }
}

Schedules build(const Algorithm& algorithm, const Hosts& hosts, Rank root = 0) {
  return algorithm.build_all(static_cast<std::int32_t>(hosts.size()), root, hosts);
}

Schedules build(Collective collective, const Hosts& hosts) {
  return build(two_level(collective), hosts);
}

// Returns what each host sends to other hosts, as multiples of the buffer.
std::vector<double> network_buffers(const Schedules& schedules, const Hosts& hosts) {
  std::vector<double> sent(static_cast<std::size_t>(std::ranges::max(hosts)) + 1);
  for (const Schedule& schedule : schedules) {
    const auto host = hosts[static_cast<std::size_t>(schedule.rank)];
    for (const Step& step : schedule.steps) {
      if (step.kind != StepKind::send) continue;
      if (hosts[static_cast<std::size_t>(step.peer)] == host) continue;
      sent[host] += 1.0 / schedule.chunk_count;
    }
  }
  return sent;
}

// Proves what is_proved_by_tests() says, together with the tests of every algorithm.
TEST(TwoLevel, IsCorrectOnEqualHosts) {
  for (int hosts = 2; hosts <= 32; ++hosts) {
    for (int each = 1; hosts * each <= 32; ++each) {
      expect_correct(contiguous(std::vector<int>(static_cast<std::size_t>(hosts), each)), 0,
                     "equal");
    }
  }
}

TEST(TwoLevel, IsCorrectOnRandomLayouts) {
  std::mt19937 random(testing::draw_seed());
  for (int ranks = 1; ranks <= 24; ++ranks) {
    for (int repetition = 0; repetition < 6; ++repetition) {
      const Rank root = std::uniform_int_distribution<int>(0, ranks - 1)(random);
      const Hosts hosts = testing::random_hosts(ranks, random, repetition % 2 == 0);
      ASSERT_NO_FATAL_FAILURE(expect_correct(hosts, root, "random"));
    }
  }
}

TEST(TwoLevel, IsCorrectOnLayoutsOfNote) {
  for (int ranks = 1; ranks <= 24; ++ranks) {
    const Rank root = ranks / 2;
    ASSERT_NO_FATAL_FAILURE(expect_correct(hosts_in_turns(ranks, 1), root, "one host"));
    ASSERT_NO_FATAL_FAILURE(expect_correct(hosts_in_turns(ranks, 2), root, "two in turns"));
    ASSERT_NO_FATAL_FAILURE(expect_correct(hosts_in_turns(ranks, 3), root, "three in turns"));
    ASSERT_NO_FATAL_FAILURE(expect_correct(hosts_in_turns(ranks, ranks), root, "one rank each"));
  }
  for (const auto& sizes : std::vector<std::vector<int>>{
           {3, 5, 1}, {1, 5, 3}, {8, 8}, {4, 4, 4, 4}, {1, 23}, {23, 1}, {6, 6, 6}, {7, 1, 1, 8}}) {
    const Hosts hosts = contiguous(sizes);
    for (int root = 0; root < std::ssize(hosts); ++root) {
      ASSERT_NO_FATAL_FAILURE(expect_correct(hosts, root, "in a row"));
    }
  }
}

TEST(TwoLevel, EveryStepIsNeeded) {
  for (const Hosts& hosts : {contiguous({2, 1}), contiguous({2, 3}), Hosts{0, 1, 0, 1, 1, 2}}) {
    for (const Algorithm* algorithm : two_level_algorithms()) {
      expect_every_step_is_needed(build(*algorithm, hosts, 1), algorithm->name);
    }
  }
}

TEST(TwoLevel, HostsThatAreSubtreesSendEachPartOfTheBufferOnce) {
  for (const auto& sizes : std::vector<std::vector<int>>{{8, 8}, {4, 4, 4}, {2, 2, 2, 2}, {4, 3}}) {
    const Hosts hosts = contiguous(sizes);
    const double others = static_cast<double>(sizes.size()) - 1;
    const double share = others / static_cast<double>(sizes.size());
    for (const Algorithm* algorithm : two_level_algorithms(Collective::all_reduce)) {
      const double wanted = algorithm->name == "two_level_eager" ? others : 2 * share;
      for (const double sent : network_buffers(build(*algorithm, hosts), hosts)) {
        EXPECT_NEAR(sent, wanted, 1e-9) << fmt::format("{}", fmt::join(sizes, "+"));
      }
    }
  }
  const Hosts hosts = contiguous({4, 4, 4});
  for (const double sent : network_buffers(build(Collective::reduce_scatter, hosts), hosts)) {
    EXPECT_NEAR(sent, 2.0 / 3, 1e-9);
  }
  for (const double sent : network_buffers(build(Collective::all_gather, hosts), hosts)) {
    EXPECT_NEAR(sent, 2.0 / 3, 1e-9);
  }
}

TEST(TwoLevel, HostsThatAreNoSubtreeSendWhatTheyAreMadeOf) {
  // Ranks 0 to 2 are two subtrees, (0 1) and 2; ranks 3 to 7 are 3 and ((4 5)(6 7)).
  const Hosts hosts = contiguous({3, 5, 1});
  const auto sent = network_buffers(build(Collective::all_reduce, hosts), hosts);
  EXPECT_NEAR(sent[0], (2 + 1) * 2.0 / 3, 1e-9);
  EXPECT_NEAR(sent[1], (2 + 1) * 2.0 / 3, 1e-9);
  EXPECT_NEAR(sent[2], (1 + 1) * 2.0 / 3, 1e-9);
}

TEST(TwoLevel, ABroadcastLeavesTheRootsHostOnce) {
  for (const auto& sizes : std::vector<std::vector<int>>{{3, 5, 1}, {8, 8}, {1, 4, 4}, {2, 2, 2}}) {
    const Hosts hosts = contiguous(sizes);
    const auto sent = network_buffers(build(Collective::broadcast, hosts), hosts);
    EXPECT_NEAR(sent[0], 1, 1e-9);
    for (std::size_t host = 1; host < sent.size(); ++host) EXPECT_LT(sent[host], 1);
  }
}

TEST(TwoLevel, OnMappedMemorySendsNothingInsideHosts) {
  const Hosts hosts = contiguous({3, 5, 1});
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.access != Access::both) continue;
    for (const Schedule& schedule : build(algorithm, hosts)) {
      const auto host = hosts[static_cast<std::size_t>(schedule.rank)];
      EXPECT_EQ(std::ranges::count(hosts, host), std::ssize(schedule.team));
      for (const Step& step : schedule.steps) {
        if (step.kind != StepKind::send) continue;
        EXPECT_NE(hosts[static_cast<std::size_t>(step.peer)], host) << algorithm.name;
      }
    }
  }
}

TEST(TwoLevel, TakesFourStepsAtMost) {
  const Hosts hosts = contiguous({3, 5, 1});
  EXPECT_EQ(cost(build(Collective::all_reduce, hosts), {}).steps, 4);
  EXPECT_EQ(cost(build(Collective::reduce_scatter, hosts), {}).steps, 2);
  EXPECT_EQ(cost(build(Collective::all_gather, hosts), {}).steps, 2);
  EXPECT_EQ(cost(build(Collective::broadcast, hosts), {}).steps, 3);
}

// The costs count messages between hosts that wait for each other: one with two_level_eager, two
// with two_level_mapped.
TEST(TwoLevel, EagerHostsExchangeOnce) {
  for (const auto& sizes : std::vector<std::vector<int>>{{4, 4}, {3, 5, 1}, {2, 2, 2, 2}}) {
    const Hosts hosts = contiguous(sizes);
    const CostQuery query{
        .link = {.latency_seconds = 1, .message_seconds = 0, .seconds_per_byte = 0},
        .local_link = {.latency_seconds = 0},
        .hosts = hosts};
    const auto ways = [&](const char* name) {
      const Algorithm* algorithm = find_algorithm(Collective::all_reduce, Access::both, name);
      return cost(build(*algorithm, hosts), query).seconds;
    };
    EXPECT_NEAR(ways("two_level_eager"), 1, 1e-3);
    EXPECT_NEAR(ways("two_level_mapped"), 2, 1e-3);
  }
}

TEST(TwoLevel, NeedsMemoryInProportionToTheRanks) {
  for (const auto& sizes : std::vector<std::vector<int>>{
           {500, 500}, std::vector<int>(125, 8), {999, 1}, {1, 999}, std::vector<int>(1000, 1)}) {
    const Hosts hosts = contiguous(sizes);
    for (const Algorithm* algorithm : two_level_algorithms()) {
      // Its ranks receive all subtrees of the other hosts, not only those of their own chunks.
      const bool is_eager = algorithm->name == "two_level_eager";
      for (const int rank : {0, 1, 499, 998, 999}) {
        const Schedule schedule = algorithm->build({rank, 1000, 0, hosts});
        EXPECT_LE(schedule.steps.size(), is_eager ? 17'000 : 12'000)
            << sizes.size() << " hosts, rank " << rank;
        EXPECT_LE(schedule.places.size(), is_eager ? 33'000 : 20'000)
            << sizes.size() << " hosts, rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace stretto::schedule
