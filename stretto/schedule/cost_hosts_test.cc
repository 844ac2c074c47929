// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/schedule/builder.h"
#include "stretto/schedule/cost.h"
#include "stretto/schedule/estimate.h"
#include "stretto/schedule/verify/verify.h"
#include "tests/support/hosts.h"

namespace stretto::schedule {
namespace {

using testing::equal_hosts;
using testing::Hosts;

constexpr std::size_t kMessageBytes = 1 << 20;
constexpr LinkCost kNetwork{.latency_seconds = 20e-6, .seconds_per_byte = 1 / 1e9};
constexpr LinkCost kInHost{.latency_seconds = 1e-6, .seconds_per_byte = 1 / 10e9};

double seconds(Collective collective, std::string_view name, const CostQuery& query, int ranks) {
  return cost(*find_algorithm(collective, Access::messages, name), ranks, query).seconds;
}

// Each of `senders` sends the whole buffer to the rank `distance` after it.
std::vector<Schedule> messages(int ranks, int senders, int distance) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < ranks; ++rank) {
    ScheduleBuilder schedule({.rank = rank, .rank_count = ranks},
                             {.algorithm = "messages", .collective = Collective::all_reduce});
    if (rank < senders) schedule.send(input(0), rank + distance);
    if (rank >= distance && rank < senders + distance) schedule.recv(rank - distance, output(0));
    schedules.push_back(std::move(schedule).build());
  }
  return schedules;
}

double one_message(const LinkCost& link) {
  return link.latency_seconds + 2 * link.message_seconds + kMessageBytes * link.seconds_per_byte;
}

TEST(CostHosts, AMessageTakesTheLinkThatItGoesOver) {
  const auto hosts = equal_hosts(4, 2);
  const CostQuery query{
      .bytes = kMessageBytes, .link = kNetwork, .local_link = kInHost, .hosts = hosts};
  EXPECT_NEAR(cost(messages(4, 1, 1), query).seconds, one_message(kInHost), 1e-12);
  EXPECT_NEAR(cost(messages(4, 1, 2), query).seconds, one_message(kNetwork), 1e-12);
}

TEST(CostHosts, RanksOfAHostShareItsPort) {
  const auto hosts = equal_hosts(8, 4);
  const CostQuery query{
      .bytes = kMessageBytes, .link = kNetwork, .local_link = kInHost, .hosts = hosts};
  const double transfer = kMessageBytes * kNetwork.seconds_per_byte;
  EXPECT_NEAR(cost(messages(8, 4, 4), query).seconds, one_message(kNetwork) + 3 * transfer, 1e-12);
  for (const Hosts& one_side : {std::vector{0, 0, 1, 2}, {0, 1, 2, 2}}) {
    const CostQuery apart{.bytes = kMessageBytes, .link = kNetwork, .hosts = one_side};
    EXPECT_NEAR(cost(messages(4, 2, 2), apart).seconds, one_message(kNetwork) + transfer, 1e-12);
  }
  // Without hosts, every rank has a port of its own.
  EXPECT_NEAR(cost(messages(8, 4, 4), {.bytes = kMessageBytes, .link = kNetwork}).seconds,
              one_message(kNetwork), 1e-12);
}

TEST(CostHosts, WithoutHostsTheLocalLinkCountsForNothing) {
  for (const char* name : {"ring", "direct", "recursive_halving", "two_level"}) {
    const CostQuery plain{.bytes = kMessageBytes, .link = kNetwork};
    const CostQuery with_local{.bytes = kMessageBytes, .link = kNetwork, .local_link = kInHost};
    EXPECT_EQ(seconds(Collective::all_reduce, name, plain, 8),
              seconds(Collective::all_reduce, name, with_local, 8));
  }
}

// However ranks have been dealt to hosts, a ring enters and leaves each host once.
TEST(CostHosts, ARingCostsTheSameOnEveryLayout) {
  const auto in_order = equal_hosts(12, 4);
  const Hosts in_turns = testing::hosts_in_turns(12, 3);
  const Hosts scattered = {0, 1, 1, 2, 0, 2, 2, 1, 0, 1, 2, 0};
  for (const Collective collective :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
    const Algorithm& ring = *find_algorithm(collective, Access::messages, "ring");
    const auto on = [&](const Hosts& hosts) {
      const Status proof = verify(ring.build_all(12, 0, hosts));
      EXPECT_TRUE(proof.ok()) << proof.message();
      return CostQuery{
          .bytes = kMessageBytes, .link = kNetwork, .local_link = kInHost, .hosts = hosts};
    };
    const double expected = seconds(collective, "ring", on(in_order), 12);
    for (const auto& hosts : {in_turns, scattered}) {
      EXPECT_NEAR(seconds(collective, "ring", on(hosts), 12), expected, 1e-9) << name(collective);
    }
    EXPECT_NEAR(estimate(ring, HostSummary(12, in_turns), on(in_turns)), expected, expected / 10);
  }
}

// Latency takes the time here. How often the two rounds of an all_reduce leave a host depends on
// the number of ranks of the largest host.
TEST(CostHosts, ARingsWayLeavesEachHostAsOftenAsItIsPricedFor) {
  for (const Hosts& hosts : {Hosts{0, 1, 2, 3}, {0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 0, 1}, {0, 1}}) {
    const auto ranks = static_cast<int>(hosts.size());
    const CostQuery query{.bytes = hosts.size() * 4,
                          .link = {.latency_seconds = 1e-3},
                          .local_link = {.latency_seconds = 1e-6},
                          .hosts = hosts};
    for (const Collective collective :
         {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
      const Algorithm& ring = *find_algorithm(collective, Access::messages, "ring");
      const double played = seconds(collective, "ring", query, ranks);
      EXPECT_NEAR(estimate(ring, HostSummary(ranks, hosts), query), played, played / 100)
          << name(collective) << " of " << ranks << " ranks, " << hosts[1]
          << hosts[2 % hosts.size()];
    }
  }
}

TEST(CostHosts, TwoLevelPaysWhereTheNetworkIsSlow) {
  const auto hosts = equal_hosts(16, 8);
  const CostQuery query{
      .bytes = 16 * kMessageBytes, .link = kNetwork, .local_link = kInHost, .hosts = hosts};
  for (const Collective collective :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
    EXPECT_LT(2 * seconds(collective, "two_level", query, 16),
              seconds(collective, "direct", query, 16))
        << name(collective);
  }
  const auto four_hosts = equal_hosts(16, 4);
  const CostQuery on_four{
      .bytes = 16 * kMessageBytes, .link = kNetwork, .local_link = kInHost, .hosts = four_hosts};
  for (const char* flat : {"direct", "binomial_tree"}) {
    EXPECT_LT(seconds(Collective::broadcast, "two_level", on_four, 16),
              seconds(Collective::broadcast, flat, on_four, 16))
        << flat;
  }
}

// Two levels take twice the steps, which decides if there are hardly any bytes. With one rank per
// host they save nothing.
TEST(CostHosts, TwoLevelDoesNotPayWhereStepsCount) {
  const auto hosts = equal_hosts(16, 8);
  const CostQuery small{.bytes = 64, .link = kNetwork, .local_link = kNetwork, .hosts = hosts};
  EXPECT_GT(seconds(Collective::all_reduce, "two_level", small, 16),
            seconds(Collective::all_reduce, "direct", small, 16));
  const auto single = equal_hosts(8, 1);
  const CostQuery apart{.bytes = kMessageBytes, .link = kNetwork, .hosts = single};
  EXPECT_EQ(seconds(Collective::all_reduce, "two_level", apart, 8),
            seconds(Collective::all_reduce, "direct", apart, 8));
}

}  // namespace
}  // namespace stretto::schedule
