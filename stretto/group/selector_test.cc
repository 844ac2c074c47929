// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/selector.h"

#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/execution/window.h"
#include "stretto/schedule/cost.h"
#include "tests/support/expect_contains.h"
#include "tests/support/files.h"
#include "tests/support/hosts.h"

namespace stretto::group {
namespace {

using testing::equal_hosts;

Selector selector_of(int ranks, int ranks_per_host, bool has_cores = true) {
  return Selector({.rank_count = ranks,
                   .hosts = equal_hosts(ranks, ranks_per_host),
                   .links = {},
                   .has_core_for_each_rank = has_cores});
}

OperationDescriptor operation_of(Collective collective, std::size_t bytes) {
  return {.collective = collective, .dtype = DType::f32, .count = bytes / 4};
}

TEST(Selector, KeepsTheOrder) {
  for (const int ranks : {2, 3, 8}) {
    const Selector selector = selector_of(ranks, 1);
    for (int c = 0; c < kCollectiveCount; ++c) {
      const auto collective = static_cast<Collective>(c);
      for (const std::size_t bytes : {0u, 64u, 65536u, 16u << 20}) {
        for (const auto& candidate : selector.candidates(operation_of(collective, bytes), true)) {
          EXPECT_NE(candidate.algorithm->order, schedule::Order::fixed)
              << candidate.algorithm->name;
        }
      }
    }
  }
}

TEST(Selector, SingleCopyIsForWhatEverybodyTakesMuchOf) {
  const auto prefers = [](int ranks, Collective collective, std::size_t bytes) {
    return selector_of(ranks, ranks).prefers_single_copy(operation_of(collective, bytes));
  };
  constexpr std::size_t kKiB = 1024;
  for (const Collective collective :
       {Collective::all_reduce, Collective::all_gather, Collective::broadcast,
        Collective::all_to_all, Collective::gather, Collective::scatter}) {
    EXPECT_FALSE(prefers(2, collective, 512 * kKiB - 4));
    EXPECT_TRUE(prefers(2, collective, 512 * kKiB));
    EXPECT_FALSE(prefers(8, collective, 512 * kKiB));
    EXPECT_TRUE(prefers(8, collective, 2048 * kKiB));
  }
  for (const std::size_t cache_bytes : {4096 * kKiB, 32768 * kKiB}) {
    const Selector selector({.rank_count = 2, .cache_bytes = cache_bytes});
    const auto scattered = [](std::size_t bytes) {
      return operation_of(Collective::reduce_scatter, bytes);
    };
    EXPECT_FALSE(selector.prefers_single_copy(scattered(cache_bytes - 4)));
    EXPECT_TRUE(selector.prefers_single_copy(scattered(cache_bytes)));
  }
  EXPECT_FALSE(prefers(2, Collective::reduce, std::size_t{1} << 30));
  // The pieces of a reduction by so many ranks would be too small.
  EXPECT_FALSE(prefers(17, Collective::all_reduce, std::size_t{1} << 30));
  EXPECT_TRUE(prefers(17, Collective::all_gather, std::size_t{1} << 30));
}

// Returns the algorithms for registered and for other buffers: "direct_mapped, eager_mapped".
std::string mapped_choice(const Selector& selector, Collective collective, std::size_t bytes) {
  const Choice choice = selector.choose(operation_of(collective, bytes), "", true, true).or_throw();
  const auto& registered = choice.direct != nullptr ? *choice.direct : *choice.staged;
  return fmt::format("{}, {}", registered.name, choice.staged->name);
}

TEST(Selector, OnMappedMemoryFewBytesNeedOneSync) {
  const Selector selector = selector_of(2, 2);
  const Collective all_reduce = Collective::all_reduce;
  EXPECT_EQ(mapped_choice(selector, all_reduce, 2048), "eager_mapped, eager_mapped");
  EXPECT_EQ(mapped_choice(selector, all_reduce, 2052), "direct_mapped, eager_mapped");
  EXPECT_EQ(mapped_choice(selector, all_reduce, 524288), "direct_mapped, eager_mapped");
  EXPECT_EQ(mapped_choice(selector, all_reduce, 524292), "direct_mapped, staged_mapped");
  EXPECT_EQ(mapped_choice(selector, Collective::reduce, 1 << 26), "direct_mapped, eager_mapped");
  EXPECT_EQ(mapped_choice(selector, Collective::broadcast, 4096), "staged_mapped, staged_mapped");
  EXPECT_EQ(mapped_choice(selector, Collective::broadcast, 4100), "direct_mapped, staged_mapped");
  EXPECT_EQ(selector.mapped_thresholds(all_reduce),
            "one sync up to 2048 bytes a rank (private buffers: 524288), as each rank has a core");
  const Selector oversubscribed = selector_of(2, 2, false);
  EXPECT_EQ(mapped_choice(oversubscribed, all_reduce, 32768), "eager_mapped, eager_mapped");
  EXPECT_EQ(mapped_choice(oversubscribed, all_reduce, 32772), "direct_mapped, eager_mapped");
}

TEST(Selector, GoesByWhatASyncCostsOnThisMachine) {
  const Selector slow(
      {.rank_count = 4, .links = {.memory = {.reduced = 16 * 1024, .private_reduced = 32 * 1024}}});
  const Collective all_reduce = Collective::all_reduce;
  EXPECT_EQ(mapped_choice(slow, all_reduce, 4096), "eager_mapped, eager_mapped");
  EXPECT_EQ(mapped_choice(slow, all_reduce, 4100), "direct_mapped, eager_mapped");
  EXPECT_EQ(mapped_choice(slow, all_reduce, 8196), "direct_mapped, staged_mapped");
}

TEST(Selector, WhereRanksShareCoresStagingIsCheaperThanASync) {
  const Selector selector = selector_of(4, 4);
  const Collective all_gather = Collective::all_gather;
  EXPECT_EQ(mapped_choice(selector, all_gather, 2048), "staged_mapped, staged_mapped");
  EXPECT_EQ(mapped_choice(selector, all_gather, 2052), "direct_mapped, staged_mapped");
  const Selector oversubscribed = selector_of(4, 4, false);
  for (const Collective shared : {all_gather, Collective::reduce_scatter, Collective::all_to_all}) {
    EXPECT_EQ(mapped_choice(oversubscribed, shared, 262144), "staged_mapped, staged_mapped");
    EXPECT_EQ(mapped_choice(oversubscribed, shared, 262160), "direct_mapped, staged_mapped");
  }
  for (const Collective rooted : {Collective::broadcast, Collective::gather, Collective::scatter}) {
    EXPECT_EQ(mapped_choice(oversubscribed, rooted, 65536), "staged_mapped, staged_mapped");
    EXPECT_EQ(mapped_choice(oversubscribed, rooted, 65552), "direct_mapped, staged_mapped");
  }
  EXPECT_EQ(mapped_choice(oversubscribed, Collective::all_reduce, 16384),
            "eager_mapped, eager_mapped");
  EXPECT_EQ(mapped_choice(oversubscribed, Collective::all_reduce, 16388),
            "direct_mapped, staged_mapped");
}

TEST(Selector, WhatIsStagedInsteadOfASyncFitsIntoOneSegment) {
  constexpr int kRanks = 64;
  const Selector selector = selector_of(kRanks, kRanks, false);
  constexpr std::size_t kShare = 64 * 1024;
  const std::size_t slot = execution::Window::kHalfBytes / kRanks - 64;
  EXPECT_EQ(mapped_choice(selector, Collective::all_gather, kRanks * kShare),
            "staged_mapped, staged_mapped");
  for (const Collective sliced : {Collective::all_to_all, Collective::reduce_scatter}) {
    EXPECT_EQ(mapped_choice(selector, sliced, kRanks * slot), "staged_mapped, staged_mapped");
    EXPECT_EQ(mapped_choice(selector, sliced, kRanks * (slot + 4)), "direct_mapped, staged_mapped");
  }
}

TEST(Selector, OfMoreThanTwoRanksPrivateBuffersAreSharedOutSooner) {
  const Selector selector = selector_of(4, 4);
  for (const Collective collective : {Collective::all_reduce, Collective::reduce}) {
    EXPECT_EQ(mapped_choice(selector, collective, 16384), "direct_mapped, eager_mapped");
    EXPECT_EQ(mapped_choice(selector, collective, 16388), "direct_mapped, staged_mapped");
  }
}

TEST(Selector, InsideTeamsNothingIsSentThatCouldBeMapped) {
  const Selector selector(
      {.rank_count = 8, .hosts = equal_hosts(8, 4), .links = {}, .has_teams = true});
  for (const Collective collective :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather}) {
    for (const std::size_t bytes : {64u, 65536u, 16u << 20}) {
      const auto candidates = selector.candidates(operation_of(collective, bytes), true);
      const auto at = [&](std::string_view name) {
        return std::ranges::find(candidates, name,
                                 [](const auto& one) { return one.algorithm->name; });
      };
      EXPECT_LT(at("two_level_mapped"), at("two_level")) << name(collective) << " " << bytes;
    }
  }
}

// These costs were measured on two hosts with a core each and a gigabit between them.
TEST(Selector, WhereTheWireTakesTheTimeTheLeastBesideItIsChosen) {
  const LinkModel links{.local = {.latency_seconds = 3e-6,
                                  .message_seconds = 0.6e-6,
                                  .seconds_per_byte = 0.2e-9,
                                  .reduce_seconds_per_byte = 0.05e-9},
                        .network = {.latency_seconds = 0.1e-6,
                                    .message_seconds = 15e-6,
                                    .seconds_per_byte = 8.36e-9,
                                    .burst_bytes = 125e3,
                                    .reduce_seconds_per_byte = 0.05e-9,
                                    .sync_seconds = 4.2e-6}};
  const Selector selector(
      {.rank_count = 4, .hosts = {0, 0, 1, 1}, .links = links, .has_teams = true});
  for (const auto& [bytes, least] : {std::pair(std::size_t{64} << 10, "two_level_eager"),
                                     {std::size_t{1} << 20, "two_level_mapped"},
                                     {std::size_t{16} << 20, "two_level_mapped"}}) {
    const auto candidates = selector.candidates(operation_of(Collective::all_reduce, bytes), true);
    EXPECT_EQ(candidates.front().algorithm->name, least) << bytes;
    const auto halving = std::ranges::find(candidates, "recursive_halving",
                                           [](const auto& one) { return one.algorithm->name; });
    EXPECT_NEAR(halving->seconds / candidates.front().seconds, 1, 0.03) << bytes;
  }
}

// 5 ms each way, 100 Mbit/s. If two hosts exchange all that they have at once, they send no more
// bytes than otherwise.
TEST(Selector, WhereTheWayTakesTheTimeHostsExchangeOnce) {
  const LinkModel links{.local = {},
                        .network = {.latency_seconds = 5e-3, .seconds_per_byte = 8e-8}};
  for (const int host_count : {2, 4}) {
    const int ranks = 4 * host_count;
    const Selector selector(
        {.rank_count = ranks, .hosts = equal_hosts(ranks, 4), .links = links, .has_teams = true});
    for (const std::size_t kilobytes : {4, 64, 1024}) {
      const OperationDescriptor operation = operation_of(Collective::all_reduce, kilobytes << 10);
      const bool is_short = host_count == 2 || kilobytes == 4;
      EXPECT_EQ(selector.candidates(operation, true).front().algorithm->name,
                is_short ? "two_level_eager" : "two_level_mapped")
          << host_count << " hosts, " << kilobytes << " KiB";
    }
  }
}

// 1 ms each way, 100 Mbit/s. If all is sent at once, a lost packet costs half a latency more.
TEST(Selector, WhatCostsTheSameOnALongNetworkIsNotSentAtOnce) {
  LinkModel links{.network = {.latency_seconds = 1.1e-3,
                              .seconds_per_byte = 8.36e-8,
                              .burst_bytes = 16e3,
                              .burst_seconds_per_byte = 1e-9}};
  const auto chosen = [&](std::size_t bytes) {
    const Selector selector(
        {.rank_count = 4, .hosts = {0, 0, 1, 1}, .links = links, .has_teams = true});
    return selector.candidates(operation_of(Collective::all_reduce, bytes), true)
        .front()
        .algorithm->name;
  };
  EXPECT_EQ(chosen(64 << 10), "two_level_mapped");
  EXPECT_EQ(chosen(1 << 20), "two_level_eager") << "the way is short beside so many bytes";
  EXPECT_EQ(chosen(8), "two_level_eager") << "two exchanges take twice the time";
  links.network.latency_seconds = 20e-6;
  EXPECT_EQ(chosen(64 << 10), "two_level_eager");
}

// A chosen algorithm takes less than 1.5 times the time of the best, as cost() predicts with its
// segments and lanes. At 30 ms each way and 10 Gbit/s, finely cut buffers take lanes by turns.
void expect_good_choices(const Selector& selector, const HostList& hosts) {
  const auto ranks = static_cast<int>(hosts.size());
  for (const Collective collective :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::broadcast, Collective::reduce, Collective::gather, Collective::scatter}) {
    for (const std::size_t bytes : {std::size_t{16} << 10, std::size_t{64} << 20}) {
      const OperationDescriptor operation = operation_of(collective, bytes);
      std::vector<double> played;
      for (const auto& candidate : selector.candidates(operation, true)) {
        const auto schedules = candidate.algorithm->build_all(ranks, 0, hosts);
        const std::size_t segment = selector.segment_bytes(*candidate.algorithm, operation);
        const auto chunks = static_cast<std::size_t>(schedules.front().chunk_count);
        const schedule::CostQuery query{
            .bytes = bytes,
            .segment_bytes = segment,
            .lanes = selector.lanes(*candidate.algorithm, segment * chunks),
            .link = selector.links().network,
            .local_link = selector.links().local,
            .hosts = hosts};
        played.push_back(schedule::cost(schedules, query).seconds);
      }
      EXPECT_LT(played.front(), 1.5 * std::ranges::min(played))
          << name(collective) << " of " << bytes << " on " << ranks << " ranks";
    }
  }
}

TEST(Selector, OnALongNetworkChoosesAsPlayingEveryRankWould) {
  const LinkModel links{
      .local = {.latency_seconds = 1e-6, .message_seconds = 0.4e-6, .seconds_per_byte = 0.1e-9},
      .network = {.latency_seconds = 30e-3, .message_seconds = 3e-6, .seconds_per_byte = 0.8e-9}};
  for (const HostList& hosts : {HostList{0, 0, 1, 1}, HostList{0, 0, 0, 0, 1, 1, 1, 1}}) {
    for (const bool has_teams : {false, true}) {
      expect_good_choices(Selector({.rank_count = static_cast<int>(hosts.size()),
                                    .hosts = hosts,
                                    .links = links,
                                    .has_teams = has_teams}),
                          hosts);
    }
  }
}

// Hosts may be of any size, but the chunks must be equal.
TEST(Selector, InsideTeamsAnAllToAllOfEqualChunksMayBeMapped) {
  for (const HostList& hosts : {HostList{0, 0, 1, 1}, HostList{0, 0, 0, 1}, HostList{0, 1, 0, 1}}) {
    const Selector selector({.rank_count = 4, .hosts = hosts, .links = {}, .has_teams = true});
    const auto is_mapped = [](const Selector::Candidate& candidate) {
      return candidate.algorithm->name == "two_level_mapped";
    };
    const OperationDescriptor operation = operation_of(Collective::all_to_all, 65536);
    EXPECT_TRUE(std::ranges::any_of(selector.candidates(operation, true), is_mapped));
    EXPECT_TRUE(std::ranges::none_of(selector.candidates(operation, false), is_mapped));
  }
}

// A program that names one of these algorithms also runs when it is started with one rank.
TEST(Selector, AloneARankMayNameWhatSharesMemory) {
  const Selector selector({.rank_count = 1});
  const OperationDescriptor operation = operation_of(Collective::all_reduce, 64);
  for (const char* name : {"direct_mapped", "two_level_mapped", "two_level_eager"}) {
    EXPECT_NE(selector.choose(operation, name, false, true).or_throw().messages, nullptr) << name;
  }
  EXPECT_FALSE(selector.choose(operation, "pairwise", false, true).ok());
}

TEST(Selector, ChoosesForAHundredThousandRanks) {
  const Selector selector = selector_of(100'000, 8);
  for (int c = 0; c < kCollectiveCount; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (collective == Collective::point_to_point) continue;
    for (const std::size_t bytes : {64u, 1u << 20}) {
      EXPECT_FALSE(selector.candidates(operation_of(collective, bytes), true).empty());
    }
  }
  const auto few = selector.candidates(operation_of(Collective::all_reduce, 64), true);
  EXPECT_EQ(few.front().algorithm->name, "recursive_doubling");
  EXPECT_LT(few.front().seconds, 1e-3);
}

// The part of a lane that the ranks of a host share has a place for each rank.
TEST(Selector, InsideTeamsOfVeryManyRanksAllIsSent) {
  const OperationDescriptor operation = operation_of(Collective::all_gather, 1 << 20);
  for (const int ranks : {2000, 5000}) {
    const Selector selector(
        {.rank_count = ranks, .hosts = equal_hosts(ranks, 8), .has_teams = true});
    bool any_mapped = false;
    for (const auto& candidate : selector.candidates(operation, true)) {
      if (candidate.algorithm->access != schedule::Access::both) continue;
      any_mapped = true;
      const std::size_t bytes = selector.segment_bytes(*candidate.algorithm, operation);
      EXPECT_LE(bytes * static_cast<std::size_t>(ranks), execution::Window::kLaneBytes);
    }
    EXPECT_EQ(any_mapped, ranks == 2000);
  }
}

// Returns the choices from 64 bytes to 64 MiB: "recursive_doubling, from 16 KiB direct".
std::string choices(Collective collective, int ranks, int ranks_per_host) {
  const Selector selector = selector_of(ranks, ranks_per_host);
  std::string text;
  std::string_view last;
  for (std::size_t bytes = 64; bytes <= std::size_t{64} << 20; bytes *= 4) {
    const auto candidates = selector.candidates(operation_of(collective, bytes), true);
    const std::string_view chosen = candidates.front().algorithm->name;
    if (chosen == last) continue;
    const bool mebibytes = bytes >= std::size_t{1} << 20;
    text += text.empty() ? std::string(chosen)
                         : fmt::format(", from {} {} {}", mebibytes ? bytes >> 20 : bytes >> 10,
                                       mebibytes ? "MiB" : "KiB", chosen);
    last = chosen;
  }
  return text;
}

TEST(Selector, ChoosesWhatTheDocumentSays) {
  const std::string text = read_file(STRETTO_SOURCE_DIR "/docs/internals/algorithms.md");
  for (const Collective collective :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::broadcast, Collective::reduce, Collective::gather, Collective::scatter,
        Collective::all_to_all, Collective::barrier}) {
    std::string row = fmt::format("\n| {} |", name(collective));
    for (const int ranks : {2, 4, 16}) row += fmt::format(" {} |", choices(collective, ranks, 1));
    expect_contains(text, row + "\n");
    row = fmt::format("\n| {} | {} |\n", name(collective), choices(collective, 16, 4));
    expect_contains(text, row);
  }
}

}  // namespace
}  // namespace stretto::group
