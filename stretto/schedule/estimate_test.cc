// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/estimate.h"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/hosts.h"

namespace stretto::schedule {
namespace {

using testing::equal_hosts;
using testing::Hosts;
using testing::random_hosts;

constexpr LinkCost kInside{
    .latency_seconds = 0.5e-6, .message_seconds = 0.2e-6, .seconds_per_byte = 1 / 5e9};
constexpr LinkCost kBetween{
    .latency_seconds = 20e-6, .message_seconds = 3e-6, .seconds_per_byte = 1 / 2e9};

CostQuery query_of(std::size_t bytes, const Hosts& hosts) {
  return {.bytes = bytes, .link = kBetween, .local_link = kInside, .hosts = hosts};
}

bool may_be_chosen(const Algorithm& algorithm) {
  return algorithm.access != Access::mapped && algorithm.order != Order::fixed;
}

// Returns the time of the algorithm with the lowest estimate, as a multiple of the best algorithm's
// time. cost() predicts both by playing all ranks' steps.
double regret(Collective collective, std::size_t bytes, int ranks, const Hosts& hosts) {
  const HostSummary summary(ranks, hosts);
  const CostQuery query = query_of(bytes, hosts);
  double best = std::numeric_limits<double>::max();
  double chosen = 0;
  double lowest = std::numeric_limits<double>::max();
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != collective || !may_be_chosen(algorithm)) continue;
    const double played = cost(algorithm, ranks, query).seconds;
    const double estimated = estimate(algorithm, summary, query);
    best = std::min(best, played);
    if (estimated < lowest) chosen = played;
    lowest = std::min(lowest, estimated);
  }
  return best > 0 ? chosen / best : 1;
}

struct Regrets {
  int count = 0;
  int large = 0;  // More than a quarter above the best.
  double worst = 1;
};

Regrets regrets_of(int ranks, const Hosts& hosts) {
  Regrets regrets;
  for (int c = 0; c < kCollectiveCount; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (collective == Collective::point_to_point) continue;
    if (collective == Collective::all_to_all && ranks > 16) continue;
    for (const std::size_t bytes : {64u, 16u << 10, 1u << 20}) {
      const double found = regret(collective, bytes, ranks, hosts);
      ++regrets.count;
      regrets.large += found > 1.25 ? 1 : 0;
      regrets.worst = std::max(regrets.worst, found);
    }
  }
  return regrets;
}

TEST(Estimate, IsThereForWhateverSendsMessages) {
  for (const Algorithm& algorithm : algorithms()) {
    EXPECT_EQ(is_estimated(algorithm), algorithm.access != Access::mapped)
        << name(algorithm.collective) << " by " << algorithm.name;
  }
}

// Of a hundred choices, three may cost a quarter more than the best, and none two and a half times
// as much. The worst choices are on hosts of many sizes.
TEST(Estimate, ChoosesAsPlayingEveryRankWould) {
  std::mt19937 random(7);
  Regrets all;
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 24, 31, 33, 48, 64}) {
    for (const Hosts& hosts :
         {Hosts{}, equal_hosts(ranks, 1), equal_hosts(ranks, ranks < 8 ? 2 : 4),
          random_hosts(ranks, random, true), random_hosts(ranks, random, false)}) {
      const Regrets found = regrets_of(ranks, hosts);
      EXPECT_LT(found.worst, 2.5) << ranks << " ranks";
      all.count += found.count;
      all.large += found.large;
    }
  }
  EXPECT_LT(all.large, 0.03 * all.count);
}

// A network of a gigabit, as it has been measured between virtual hosts.
constexpr LinkCost kGigabit{.latency_seconds = 25e-6,
                            .message_seconds = 5e-6,
                            .seconds_per_byte = 8 / 0.956e9,
                            .reduce_seconds_per_byte = 1 / 8e9};

double played(std::string_view name, Access access, const Hosts& hosts, const CostQuery& query) {
  return cost(*find_algorithm(Collective::all_reduce, access, name), static_cast<int>(hosts.size()),
              query)
      .seconds;
}

// On hosts of unequal size, one direction of a port carries more than the other in each phase.
// Chunks and their segments let the phases overlap.
TEST(Estimate, OfTwoLevelsFollowsThePiecesOfUnevenHosts) {
  const Algorithm& mapped =
      *find_algorithm(Collective::all_reduce, Access::both, "two_level_mapped");
  for (const Hosts& hosts : {Hosts{0, 0, 0, 1}, Hosts{0, 1, 1, 1}, Hosts{0, 1, 0, 1},
                             Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 0, 0, 1, 1, 1}}) {
    const HostSummary summary(static_cast<int>(hosts.size()), hosts);
    for (const std::size_t kilobytes : {64, 1024, 4096, 16384}) {
      const std::size_t bytes = kilobytes << 10;
      const CostQuery query{.bytes = bytes,
                            .segment_bytes = 256 << 10,
                            .link = kGigabit,
                            .local_link = kInside,
                            .hosts = hosts};
      const double by_steps = played("two_level_mapped", Access::both, hosts, query);
      EXPECT_NEAR(estimate(mapped, summary, query) / by_steps, 1, 0.15)
          << bytes << " bytes on " << hosts.size() << " ranks, the second on host " << hosts[1];
      // The estimates rank the two algorithms as playing the steps does.
      const Algorithm& direct = *find_algorithm(Collective::all_reduce, Access::messages, "direct");
      EXPECT_EQ(estimate(mapped, summary, query) < estimate(direct, summary, query),
                by_steps < played("direct", Access::messages, hosts, query));
    }
  }
}

// Rank 0 receives from three ranks of another host at once: one latency of a millisecond.
TEST(Estimate, OfReductionsAroundARootKnowsALongWay) {
  const Hosts hosts{0, 1, 1, 1};
  const HostSummary summary(4, hosts);
  CostQuery query = query_of(1 << 10, hosts);
  query.link.latency_seconds = 1e-3;
  for (const auto& [access, name] :
       {std::pair(Access::messages, "knomial"), {Access::both, "two_level_mapped"}}) {
    const Algorithm& algorithm = *find_algorithm(Collective::reduce, access, name);
    EXPECT_NEAR(estimate(algorithm, summary, query) / cost(algorithm, 4, query).seconds, 1, 0.05)
        << name;
  }
}

TEST(Estimate, KnowsHowManyChunksSchedulesHave) {
  for (const Hosts& hosts : {Hosts{0}, Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 1, 1, 1},
                             Hosts{0, 1, 0, 1, 2, 2, 2}, equal_hosts(24, 8)}) {
    const auto ranks = static_cast<std::int32_t>(hosts.size());
    const HostSummary summary(ranks, hosts);
    for (const Algorithm& algorithm : algorithms()) {
      if (!is_estimated(algorithm)) continue;
      const int built =
          algorithm.build({.rank = 0, .rank_count = ranks, .hosts = hosts}).chunk_count;
      const bool is_squared = algorithm.collective == Collective::all_to_all;
      EXPECT_EQ(chunk_count(algorithm, summary), is_squared ? ranks : built)
          << name(algorithm.collective) << " by " << algorithm.name << " on " << ranks;
    }
  }
}

// With these numbers, plans and prices go by the same segments.
TEST(Estimate, KnowsHowManySlotsSchedulesShare) {
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 1}, Hosts{0, 1, 1, 1},
                             Hosts{0, 1, 0, 1, 2, 2, 2}, equal_hosts(24, 8)}) {
    const auto ranks = static_cast<std::int32_t>(hosts.size());
    const HostSummary summary(ranks, hosts);
    for (const Algorithm& algorithm : algorithms()) {
      if (algorithm.access != Access::both) continue;
      const auto schedules = algorithm.build_all(ranks, ranks - 1, hosts);
      const int shared = shared_slots(algorithm, summary);
      const int most = std::ranges::max(schedules, {}, &Schedule::shared_slots).shared_slots;
      EXPECT_GE(shared, most) << name(algorithm.collective) << " on " << ranks;
      // Only the root's host shares slots, and it may have fewer ranks than another host.
      const bool is_of_root =
          algorithm.collective == Collective::gather || algorithm.collective == Collective::scatter;
      if (is_of_root) continue;
      EXPECT_EQ(shared, most) << name(algorithm.collective) << " on " << ranks;
    }
  }
}

// Linux's token bucket lets some bytes pass at once, as networks of clouds do.
TEST(Estimate, LetsWhatPassesAtOnceSaveTheTimeOfTheWay) {
  const Hosts hosts = equal_hosts(4, 1);
  const HostSummary summary(4, hosts);
  const Algorithm& algorithm =
      *find_algorithm(Collective::all_reduce, Access::messages, "recursive_doubling");
  CostQuery query{.bytes = 4096, .link = kGigabit, .local_link = kInside};
  const double wire = 2 * 4096 * kGigabit.seconds_per_byte;
  const double ways = 2 * (kGigabit.latency_seconds + 2 * kGigabit.message_seconds);
  const double rest = estimate(algorithm, summary, query) - wire - ways;
  EXPECT_GE(rest, 0);
  EXPECT_LT(rest, 5e-6);
  query.link.burst_bytes = 128 << 10;
  EXPECT_NEAR(estimate(algorithm, summary, query), std::max(wire, ways + rest), 1e-9);
  query.link.burst_seconds_per_byte = 2e-9;
  EXPECT_NEAR(estimate(algorithm, summary, query), std::max(wire, ways + rest + 2 * 4096 * 2e-9),
              1e-9);
  query.link.burst_seconds_per_byte = 0;
  // On uneven hosts, a rank that waits in one phase sends at once in the other.
  const Hosts uneven{0, 0, 0, 1};
  query.bytes = 64 << 10;
  EXPECT_NEAR(estimate(*find_algorithm(Collective::all_reduce, Access::messages, "two_level"),
                       HostSummary(4, uneven), query),
              (64 << 10) * kGigabit.seconds_per_byte, 1e-7);
  query.bytes = 16 << 20;
  const double with_burst = estimate(algorithm, summary, query);
  query.link.burst_bytes = 0;
  EXPECT_NEAR(with_burst / estimate(algorithm, summary, query), 1, 0.01);
}

// 100 Mbit/s, 1 ms each way: both phases of an all_reduce begin with bytes that pass at once.
TEST(Estimate, LetsSomeBytesPassAtOnceInEachPhase) {
  const Hosts hosts{0, 0, 1, 1};
  CostQuery query{.bytes = 64 << 10, .link = kGigabit, .local_link = kInside, .hosts = hosts};
  query.link.latency_seconds = 1e-3;
  query.link.seconds_per_byte = 80e-9;
  query.link.burst_bytes = 12'000;
  const double wire = (64 << 10) * 80e-9;
  const double at_once = 2 * 12'000 * 80e-9;
  const double ways = 2 * (1e-3 + 2 * kGigabit.message_seconds);
  EXPECT_NEAR(estimate(*find_algorithm(Collective::all_reduce, Access::messages, "two_level"),
                       HostSummary(4, hosts), query),
              ways + wire - at_once, 0.1e-3);
}

// There are 16 segments of 64 KiB by four chunks, and 20 ms each way: eight lanes need two turns.
TEST(Estimate, KnowsThatLanesAreTakenByTurns) {
  const Hosts hosts{0, 0, 1, 1};
  const HostSummary summary(4, hosts);
  CostQuery query{.bytes = 4 << 20,
                  .segment_bytes = 64 << 10,
                  .link = {.latency_seconds = 20e-3, .seconds_per_byte = 1e-11},
                  .local_link = kInside,
                  .hosts = hosts};
  for (const auto& [collective, ways] : {std::pair(Collective::all_reduce, 2),
                                         {Collective::reduce_scatter, 1},
                                         {Collective::all_gather, 1}}) {
    const Algorithm& mapped = *find_algorithm(collective, Access::both, "two_level_mapped");
    for (const std::size_t lanes : {16, 8}) {
      query.lanes = lanes;
      const double turns = 16.0 / static_cast<double>(lanes);
      EXPECT_NEAR(estimate(mapped, summary, query), turns * ways * 20e-3, 2e-3);
      EXPECT_NEAR(cost(mapped, 4, query).seconds, turns * ways * 20e-3, 2e-3);
    }
  }
  // In a broadcast, all data goes one way: nobody waits for an answer before it uses a lane again.
  query.lanes = 8;
  query.bytes = 1 << 20;
  const Algorithm& tree = *find_algorithm(Collective::broadcast, Access::messages, "binomial_tree");
  EXPECT_NEAR(estimate(tree, summary, query), 20e-3, 2e-3);
  EXPECT_NEAR(cost(tree, 4, query).seconds, 20e-3, 2e-3);
}

// Each of 1024 segments is a message of a microsecond to each of 15 other ranks.
TEST(Estimate, KnowsThatARankPassesItsMessagesOnOneByOne) {
  const Hosts hosts = equal_hosts(16, 1);
  const CostQuery query{.bytes = 1 << 20,
                        .segment_bytes = 64,
                        .link = {.latency_seconds = 5e-6, .seconds_per_byte = 1e-11},
                        .hosts = hosts};
  const Algorithm& direct = *find_algorithm(Collective::all_gather, Access::messages, "direct");
  EXPECT_NEAR(estimate(direct, HostSummary(16, hosts), query), 1024 * 15e-6, 0.5e-3);
}

// Nothing overlaps if every rank has a link of its own and the number of ranks is a power of two.
TEST(Estimate, IsExactWhereNothingOverlaps) {
  for (const int ranks : {2, 4, 16, 64}) {
    const HostSummary summary(ranks, {});
    for (const auto& [collective, name] : {std::pair(Collective::all_reduce, "direct"),
                                           {Collective::all_reduce, "recursive_doubling"},
                                           {Collective::all_gather, "ring"},
                                           {Collective::reduce_scatter, "ring"},
                                           {Collective::all_reduce, "ring"},
                                           {Collective::broadcast, "binomial_tree"},
                                           {Collective::gather, "direct"},
                                           {Collective::barrier, "recursive_doubling"}}) {
      const Algorithm& algorithm = *find_algorithm(collective, Access::messages, name);
      const CostQuery query = query_of(1 << 20, {});
      const double played = cost(algorithm, ranks, query).seconds;
      EXPECT_NEAR(estimate(algorithm, summary, query), played, 1e-9 + played * 1e-6)
          << name << " on " << ranks;
    }
  }
}

}  // namespace
}  // namespace stretto::schedule
