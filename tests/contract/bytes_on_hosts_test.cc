// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Counts what the links between ranks on several hosts carry. Ranks of one host have mapped each
// other's memory and send nothing to each other; between hosts the links carry what the schedules
// say.

#include <array>
#include <atomic>
#include <barrier>
#include <thread>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "stretto/schedule/algorithms.h"
#include "stretto/transport/loopback/world.h"
#include "tests/support/on_threads.h"
#include "tests/support/problem.h"
#include "tests/support/rank_list.h"

namespace stretto {
namespace {

constexpr int kRanks = 4;
using HostList = std::vector<std::int32_t>;
constexpr std::size_t kCount = 48 * 1024;  // Of floats.
constexpr int kTimes = 4;
// The most that a message needs beside its payload, including what its receiver sends back.
constexpr std::size_t kFrameBytesMax = 256;

// Bytes that each rank has sent to each other rank.
struct Counts {
  HostList hosts;
  std::array<std::array<std::atomic<std::size_t>, kRanks>, kRanks> bytes{};

  std::size_t on_ways(bool between_hosts) const {
    std::size_t sum = 0;
    for (std::size_t from = 0; from < kRanks; ++from) {
      for (std::size_t to = 0; to < kRanks; ++to) {
        if ((hosts[from] != hosts[to]) == between_hosts) sum += bytes[from][to];
      }
    }
    return sum;
  }
};

class CountingLink final : public transport::Link {
 public:
  CountingLink(std::unique_ptr<transport::Link> link, std::atomic<std::size_t>& count)
      : link_(std::move(link)), count_(count) {}
  std::string_view name() const override { return link_->name(); }
  Result<std::size_t> write(std::span<const ConstByteSpan> pieces) override {
    Result<std::size_t> written = link_->write(pieces);
    if (written.ok()) count_ += *written;
    return written;
  }
  Result<std::size_t> read(ByteSpan into) override { return link_->read(into); }
  bool readable() const override { return link_->readable(); }
  bool needs_poll() const override { return link_->needs_poll(); }
  int descriptor() const override { return link_->descriptor(); }
  void service(std::uint32_t events) override { link_->service(events); }
  void notify() override { link_->notify(); }
  bool peer_sleeps() const override { return link_->peer_sleeps(); }
  Contact check_contact(TimePoint now) override { return link_->check_contact(now); }
  void disconnect() override { link_->disconnect(); }

 private:
  std::unique_ptr<transport::Link> link_;
  std::atomic<std::size_t>& count_;
};

testing::RankList make_ranks(Counts& counts) {
  auto endpoints = transport::loopback::make_world(
                       {.ranks = kRanks,
                        .hosts = counts.hosts,
                        .wrap =
                            [&](Rank self, Rank peer, std::unique_ptr<transport::Link> link) {
                              auto& row = counts.bytes[static_cast<std::size_t>(self)];
                              return std::make_unique<CountingLink>(
                                  std::move(link), row[static_cast<std::size_t>(peer)]);
                            }})
                       .or_throw();
  return testing::make_ranks(endpoints, {}, {.group = {.hosts = counts.hosts}});
}

struct Traffic {
  std::size_t bytes = 0;
  std::size_t messages = 0;
};

// What all ranks together send by the schedules of one operation.
Traffic traffic_of(const schedule::Algorithm& algorithm, const HostList& hosts,
                   std::size_t buffer_bytes) {
  Traffic traffic;
  for (const schedule::Schedule& steps : algorithm.build_all(kRanks, 0, hosts)) {
    for (const schedule::Step& step : steps.steps) {
      if (step.kind != schedule::StepKind::send) continue;
      ++traffic.messages;
      if (!steps.sources(step).empty()) {
        // In an all_to_all, a rank's buffer holds only the chunks that this rank sends.
        const bool exchanges = steps.collective == Collective::all_to_all;
        const std::int32_t chunks = steps.chunk_count / (exchanges ? kRanks : 1);
        traffic.bytes += buffer_bytes / static_cast<std::size_t>(chunks);
      }
    }
  }
  return traffic;
}

// `once`: the traffic of one run of `problem`.
void expect_traffic(const Counts& counts, std::span<const std::unique_ptr<Communicator>> ranks,
                    const testing::Problem& problem, const Traffic& once) {
  ASSERT_EQ(testing::try_on_all(ranks, problem), "");
  const std::size_t inside = counts.on_ways(false);
  const std::size_t between = counts.on_ways(true);
  for (int i = 0; i < kTimes; ++i) ASSERT_EQ(testing::try_on_all(ranks, problem), "");
  // Ranks that wait for long ask each other where they are.
  EXPECT_LE(counts.on_ways(false), inside + 4 * kFrameBytesMax);
  const std::size_t sent = counts.on_ways(true) - between;
  // A message may travel in two segments.
  const std::size_t frames = kTimes * once.messages * 2 * kFrameBytesMax;
  EXPECT_GE(sent, kTimes * once.bytes);
  EXPECT_LE(sent, kTimes * once.bytes + frames);
  EXPECT_GT(once.messages, 0u);
}

class BytesOnHosts : public ::testing::TestWithParam<std::tuple<schedule::Algorithm, HostList>> {};

TEST_P(BytesOnHosts, InsideNothingIsSentAndBetweenWhatTheScheduleSays) {
  const auto& [algorithm, hosts] = GetParam();
  testing::Problem problem{.collective = algorithm.collective,
                           .ranks = kRanks,
                           .count = kCount,
                           .algorithm = std::string(algorithm.name)};
  if (has_shares(algorithm.collective)) {
    problem = testing::with_equal_shares(problem, kCount / kRanks);
  }
  Counts counts{.hosts = hosts};
  const auto ranks = make_ranks(counts);
  for (const bool registered : {false, true}) {
    SCOPED_TRACE(registered ? "registered" : "private");
    problem.registered = registered;
    expect_traffic(counts, ranks, problem, traffic_of(algorithm, hosts, kCount * sizeof(float)));
  }
}

std::vector<schedule::Algorithm> on_mapped_memory_and_by_messages() {
  std::vector<schedule::Algorithm> found;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.access == schedule::Access::both) found.push_back(algorithm);
  }
  return found;
}

// Two ranks on each of two hosts, in order and by turns; and a rank that shares memory with nobody.
INSTANTIATE_TEST_SUITE_P(, BytesOnHosts,
                         ::testing::Combine(::testing::ValuesIn(on_mapped_memory_and_by_messages()),
                                            ::testing::Values(HostList{0, 0, 1, 1},
                                                              HostList{0, 1, 0, 1},
                                                              HostList{0, 0, 0, 1})),
                         [](const auto& tested) {
                           const schedule::Algorithm& algorithm = std::get<0>(tested.param);
                           return fmt::format("{}_{}_{}", name(algorithm.collective),
                                              algorithm.name,
                                              fmt::join(std::get<1>(tested.param), ""));
                         });

// Two hosts of two ranks. The ranks of the first host call an operation that waits for the second
// host, and then another one, whose messages leave all the same.
TEST(OnHosts, AnOperationBeginsWhileAnotherWaits) {
  constexpr std::size_t kFloats = 4096;
  // In each operation, the first host sends the second the half of the values that the second owns.
  constexpr std::size_t kBytesOfBoth = kFloats * sizeof(float);
  for (const char* algorithm : {"two_level_mapped", "two_level"}) {
    SCOPED_TRACE(algorithm);
    Counts counts{.hosts = {0, 0, 1, 1}};
    const auto ranks = make_ranks(counts);
    const auto sent = [&counts]() -> std::size_t {
      const auto& bytes = counts.bytes;
      return bytes[0][2] + bytes[0][3] + bytes[1][2] + bytes[1][3];
    };
    std::size_t before = 0;
    std::barrier warm(kRanks, [&]() noexcept { before = sent(); });
    std::atomic<int> senders = 2;
    on_threads(kRanks, [&](std::size_t r) {
      std::vector<float> first(kFloats, 1.0f);
      std::vector<float> second(kFloats, 2.0f);
      const AllReduceOptions options{.algorithm = algorithm};
      ranks[r]->all_reduce(first, options).wait();
      warm.arrive_and_wait();
      while (r >= 2 && senders > 0) std::this_thread::yield();
      Work one = ranks[r]->all_reduce(first, options);
      Work two = ranks[r]->all_reduce(second, options);
      if (r < 2) {
        const Deadline deadline = Deadline::after(std::chrono::seconds(20));
        while (sent() - before < kBytesOfBoth && !deadline.passed()) (void)two.done();
        EXPECT_GE(sent() - before, kBytesOfBoth);
        EXPECT_FALSE(one.done());
        --senders;
      }
      one.wait();
      two.wait();
      EXPECT_EQ(first.front(), 16.0f);
      EXPECT_EQ(second.back(), 8.0f);
    });
  }
}

}  // namespace
}  // namespace stretto
