// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/link_probe.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/communicator/all_gather_value.h"
#include "stretto/communicator/contention_probe.h"
#include "stretto/communicator/link_cache.h"
#include "stretto/communicator/memory_probe.h"
#include "stretto/communicator/scheduled_backend.h"
#include "stretto/job/threads.h"
#include "stretto/transport/loopback/world.h"
#include "tests/support/expect_contains.h"
#include "tests/support/files.h"
#include "tests/support/on_threads.h"

namespace stretto::communicator {
namespace {

constexpr int kRanks = 3;

class LinkProbe : public ::testing::Test {
 protected:
  std::filesystem::path folder(int rank) const { return folder_ / std::to_string(rank); }

  // Returns what all ranks agree on, each with a cache of its own. This is about links, or, if
  // `shares_memory`, about mapped memory.
  std::vector<group::LinkModel> agree(bool shares_memory = false) {
    auto ranks = make_thread_ranks(
        {.size = kRanks, .shared_memory = shares_memory, .timeout = std::chrono::seconds(20)});
    std::vector<group::LinkModel> models(kRanks);
    on_threads(kRanks, [&](int r) {
      const auto at = static_cast<std::size_t>(r);
      const LinkCacheOptions cache{.folder = folder(r).string(),
                                   .congestion_control = congestion_control_,
                                   .host = names_[at]};
      if (shares_memory) {
        const Status status = agree_on_memory(
            *ranks[at], cache, [](const auto&) {}, models[at]);
        EXPECT_TRUE(status.ok()) << status.message();
        return;
      }
      auto model = agree_on_links(*ranks[at], hosts_, cache);
      EXPECT_TRUE(model.ok()) << model.status().message();
      if (model.ok()) models[at] = *model;
    });
    return models;
  }

  static void expect_equal(const schedule::LinkCost& a, const schedule::LinkCost& b) {
    EXPECT_EQ(a.latency_seconds, b.latency_seconds);
    EXPECT_EQ(a.message_seconds, b.message_seconds);
    EXPECT_EQ(a.seconds_per_byte, b.seconds_per_byte);
    EXPECT_EQ(a.reduce_seconds_per_byte, b.reduce_seconds_per_byte);
  }
  static void expect_all_equal(const std::vector<group::LinkModel>& models) {
    for (const group::LinkModel& model : models) {
      expect_equal(model.local, models.front().local);
      expect_equal(model.network, models.front().network);
      EXPECT_EQ(model.memory.reduced, models.front().memory.reduced);
      EXPECT_EQ(model.memory.moved, models.front().memory.moved);
      EXPECT_EQ(model.memory.private_reduced, models.front().memory.private_reduced);
      EXPECT_EQ(model.memory.takes_lines, models.front().memory.takes_lines);
      EXPECT_EQ(model.source, models.front().source);
    }
  }

  const TemporaryFolder folder_;
  std::string congestion_control_;
  std::array<std::string, kRanks> names_ = {"node01", "node01", "node02"};
  group::HostList hosts_ = {0, 0,
                            1};  // Rank 0 leads the pair of its host, and the pair of the hosts.
};

TEST_F(LinkProbe, RanksWithDifferentCachesComeToTheSameNumbers) {
  const auto measured = agree();
  expect_all_equal(measured);
  expect_contains(measured.front().source, "measured just now");
  // Rank 1 remembers other numbers than rank 0. Rank 2 remembers none.
  std::filesystem::copy(folder(0), folder(1));
  const CachedLink other{.cost = {.latency_seconds = 0.125,
                                  .message_seconds = 0.25,
                                  .seconds_per_byte = 1e-3,
                                  .reduce_seconds_per_byte = 1e-4}};
  for (const auto& file : std::filesystem::directory_iterator(folder(1))) {
    save_link(file.path().string(), "another opinion", other);
  }
  const auto remembered = agree();
  expect_all_equal(remembered);
  EXPECT_LT(remembered.front().local.latency_seconds, 0.1);
  expect_lacks(remembered.front().source, "just now");
  congestion_control_ = "bbr";
  expect_contains(agree().front().source, "just now");
}

TEST_F(LinkProbe, AnotherHostIsMeasuredAnew) {
  (void)agree();
  names_.back() = "node03";
  expect_contains(agree().front().source, "just now");
  names_.back() = "node02";
  expect_lacks(agree().front().source, "just now");
}

// Rank 0 leads the measurement, so the other ranks take their numbers from it.
TEST(AgreeOnLinks, NumbersThatNoRankCanHaveMeasuredAreRefused) {
  const group::HostList hosts = {0, 1};
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity(), -1.0, 0.0}) {
    auto ranks = make_thread_ranks({.size = 2, .timeout = std::chrono::seconds(20)});
    on_threads(2, [&](int rank) {
      Communicator& world = *ranks[static_cast<std::size_t>(rank)];
      if (rank == 1) {
        const Status status = agree_on_links(world, hosts, {}).status();
        EXPECT_EQ(status.code(), StatusCode::protocol) << bad;
        EXPECT_EQ(status.message(), "rank 0 tells costs of a link that cannot be");
        EXPECT_EQ(status.rank(), Rank(0));
        return;
      }
      (void)all_gather_value(world, ToldHost(), std::nullopt);
      const std::array<std::uint8_t, 1> measure{};
      world.send(measure, {.to = 1, .tag = kProbeTag}).wait();
      (void)ContentionProbe(world, hosts).run({});
      CachedLink link{.cost = {.seconds_per_byte = bad}};
      EXPECT_THROW(share_link(world, 0, "nonsense", link), ProtocolError);
    });
  }
}

// Hosts may have any numbers. Ranks beyond the fourth of a host, or of a fifth host, only wait.
TEST_F(LinkProbe, ContentionIsThatOfAFewRanksOfAFewHosts) {
  hosts_ = {7, 7, 3};
  expect_all_equal(agree());
  auto ranks = make_thread_ranks({.size = 1});
  const group::HostList many = {5, 5, 5, 5, 5, 2, 9, 9, 0, 1, 1};
  RankVector<std::string> names(11);
  names[5] = "a";
  EXPECT_EQ(ContentionProbe(*ranks[0], many).describe(names), "4 of , 1 of a, 2 of , 1 of ");
}

// Ranks that find no partner on another host make pairs on their own, to be busy meanwhile.
TEST(ContentionProbe, LeavesNoTwoRanksOfAHostWithoutAPartner) {
  for (const group::HostList& hosts : {group::HostList{0, 0, 0, 1}, group::HostList{1, 0, 0, 0, 0},
                                       group::HostList{0, 1, 2, 2, 2}}) {
    const int size = static_cast<int>(hosts.size());
    auto ranks = make_thread_ranks({.size = size, .timeout = std::chrono::seconds(20)});
    on_threads(size, [&](int rank) {
      ContentionProbe contention(*ranks[static_cast<std::size_t>(rank)], hosts);
      const ContentionProbe::Rounds told{.of_byte = 5, .many = {2, 3, 4096}, .few = {1, 1, 100}};
      const auto times = contention.run(rank == 0 ? told : ContentionProbe::Rounds());
      EXPECT_GT(times.all_seconds, 0);
    });
    int alone = 0;
    for (int rank = 0; rank < size; ++rank) {
      alone += Contenders(hosts, rank).partner.empty() ? 1 : 0;
    }
    EXPECT_LE(alone, 1) << "of an odd number, one";
  }
}

TEST(MessageCosts, FollowFromOneMessageAndFromSeveral) {
  schedule::LinkCost cost;
  set_shared_costs({.pair_seconds = 40e-6, .all_seconds = 60e-6, .peers_max = 3}, cost);
  EXPECT_NEAR(cost.message_seconds, 10e-6, 1e-12);
  EXPECT_NEAR(cost.latency_seconds, 20e-6, 1e-12);
  // The time with one peer shows nothing about single messages, so their cost stays.
  set_shared_costs({.pair_seconds = 30e-6, .all_seconds = 90e-6, .peers_max = 1}, cost);
  EXPECT_NEAR(cost.message_seconds, 10e-6, 1e-12);
  EXPECT_NEAR(cost.latency_seconds, 10e-6, 1e-12);
  // On shared cores, each further message costs more than a message's part of a single one.
  set_shared_costs({.pair_seconds = 35e-6, .all_seconds = 93e-6, .peers_max = 3}, cost);
  EXPECT_NEAR(2 * cost.message_seconds + cost.latency_seconds, 35e-6, 1e-12);
  EXPECT_NEAR(cost.further_message_seconds, 29e-6, 1e-12);
  EXPECT_GT(cost.latency_seconds, 0);
}

// A burst does not show the rate of a link. A fast link is measured with all ranks at once.
TEST(MessageCosts, OfBytesAreThoseOfAllRanksAtOnce) {
  schedule::LinkCost shaped{.seconds_per_byte = 8e-9, .burst_bytes = 1e5};
  set_shared_costs({.pair_seconds = 30e-6, .burst_seconds_per_byte = 1e-9}, shaped);
  EXPECT_EQ(shaped.seconds_per_byte, 8e-9);
  EXPECT_EQ(shaped.burst_bytes, 1e5);
  EXPECT_EQ(shaped.burst_seconds_per_byte, 1e-9);
  set_shared_costs({.pair_seconds = 30e-6, .burst_seconds_per_byte = 7.9e-9}, shaped);
  EXPECT_EQ(shaped.burst_bytes, 0) << "they have waited for their turn";
  EXPECT_EQ(shaped.burst_seconds_per_byte, 0);
  schedule::LinkCost fast{.seconds_per_byte = 1e-9};
  set_shared_costs({.pair_seconds = 30e-6}, fast);
  EXPECT_EQ(fast.seconds_per_byte, 1e-9) << "not measured";
  set_shared_costs({.pair_seconds = 30e-6, .many_bytes = 1e6, .many_seconds = 2e-3}, fast);
  EXPECT_EQ(fast.seconds_per_byte, 2e-9);
  // The bytes that have passed as a burst say nothing about the rest.
  fast.burst_bytes = 5e5;
  set_shared_costs({.pair_seconds = 30e-6,
                    .many_bytes = 1e6,
                    .many_seconds = 2e-3,
                    .burst_seconds_per_byte = 1e-9},
                   fast);
  EXPECT_EQ(fast.seconds_per_byte, 4e-9);
}

TEST(ContentionProbe, SendsFewBytesWhereSomePassAtOnceAndManyWhereTheLinkIsFast) {
  auto ranks = make_thread_ranks({.size = 1});
  const ContentionProbe contention(*ranks[0], {0, 0, 1, 1});
  const auto slow = contention.rounds_for({.seconds_per_byte = 8e-9, .burst_bytes = 1e5}, 1e-4);
  EXPECT_EQ(slow.few.rounds, 1);
  EXPECT_GT(slow.few.messages, 1);
  EXPECT_LE(2.0 * slow.few.rounds * slow.few.messages * slow.few.bytes, 0.8 * 1e5);
  EXPECT_EQ(slow.many.rounds, 0);
  EXPECT_EQ(contention.rounds_for({.seconds_per_byte = 8e-9, .burst_bytes = 10}, 1e-4).few.rounds,
            0);
  const auto fast = contention.rounds_for({.seconds_per_byte = 1e-9}, 1e-4);
  EXPECT_GT(fast.many.rounds, 1);
  EXPECT_GE(fast.many.messages * fast.many.bytes, 1 << 20);
  EXPECT_EQ(fast.few.rounds, 0);
}

// Ranks without a host are not measured.
TEST(ContentionProbe, RanksThatAreOnNoHostDoNotTakePart) {
  auto ranks = make_thread_ranks({.size = 1});
  const RankVector<std::string> names = std::vector<std::string>{"a", "b", "c", "d", "e"};
  EXPECT_EQ(ContentionProbe(*ranks[0], {0, -1, 2, -1, 4}).describe(names),
            "1 of a, 1 of c, 1 of e");
}

// The leader of a measurement decides. The caches of the others are not read.
TEST_F(LinkProbe, WhatOnlyAFollowerRemembersIsMeasuredAnew) {
  (void)agree();
  std::filesystem::rename(folder(0), folder(1));
  const auto measured = agree();
  expect_all_equal(measured);
  expect_contains(measured.front().source, "measured just now");
}

// A link on which each message takes 40 ms.
class LaggingLink final : public transport::Link {
 public:
  explicit LaggingLink(std::unique_ptr<transport::Link> link) : link_(std::move(link)) {}
  std::string_view name() const override { return link_->name(); }
  Result<std::size_t> write(std::span<const ConstByteSpan> pieces) override {
    return link_->write(pieces);
  }
  Result<std::size_t> read(ByteSpan into) override {
    Result<std::size_t> bytes = link_->read(into);
    if (bytes.ok() && *bytes > 0) std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return bytes;
  }
  bool readable() const override { return link_->readable(); }
  int descriptor() const override { return link_->descriptor(); }
  void service(std::uint32_t events) override { link_->service(events); }
  void notify() override { link_->notify(); }
  bool peer_sleeps() const override { return link_->peer_sleeps(); }
  void disconnect() override { link_->disconnect(); }

 private:
  std::unique_ptr<transport::Link> link_;
};

// No single operation takes too long, but there are many: twenty round trips of one byte alone.
TEST(MakeWorld, TakesNoLongerThanItMayThoughItMeasuresLinks) {
  const auto lag = [](Rank, Rank, std::unique_ptr<transport::Link> link) {
    return std::make_unique<LaggingLink>(std::move(link));
  };
  auto endpoints =
      transport::loopback::make_world({.ranks = 2, .shared_memory = false, .wrap = lag}).or_throw();
  std::array<Status, 2> statuses;
  std::array<Duration, 2> taken{};
  const TimePoint begin = Clock::now();
  const Deadline until(begin + std::chrono::milliseconds(500));
  on_threads(2, [&](std::size_t rank) {
    auto engine = group::Engine::create(std::move(endpoints[rank]), {.local_ranks = 2}).or_throw();
    statuses[rank] = ScheduledBackend::make_world(std::move(engine),
                                                  {.measure_links = LinkCacheOptions()}, until)
                         .status();
    taken[rank] = Clock::now() - begin;
  });
  for (const Status& status : statuses) EXPECT_FALSE(status.ok());
  // The other rank may hear of the timeout instead.
  EXPECT_TRUE(std::ranges::count(statuses, StatusCode::timeout, &Status::code) > 0)
      << statuses[0].message() << "; " << statuses[1].message();
  EXPECT_LT(std::ranges::max(taken), std::chrono::seconds(5));
}

// Otherwise one rank would measure links, and the other mapped memory.
TEST(MakeWorld, MeasuresAnewOnAllRanksWhereOneIsToldSo) {
  for (const bool first : {true, false}) {
    auto endpoints = transport::loopback::make_world({.ranks = 2}).or_throw();
    RankVector<std::unique_ptr<Communicator>> worlds(2);
    on_threads(2, [&](int rank) {
      auto engine = group::Engine::create(std::move(endpoints[static_cast<std::size_t>(rank)]),
                                          {.local_ranks = 2, .local_cores = 2})
                        .or_throw();
      const LinkCacheOptions cache{.refresh = first == (rank == 0)};
      worlds[rank] = ScheduledBackend::make_world(std::move(engine), {.measure_links = cache},
                                                  Deadline::after(std::chrono::seconds(20)))
                         .or_throw();
    });
    for (const auto& world : worlds) EXPECT_FALSE(world->has_failed());
  }
}

// A sync of a team takes as long as a message within a host.
TEST_F(LinkProbe, ASyncWaitsForTheOthersCores) {
  const group::LinkModel model = agree().front();
  EXPECT_DOUBLE_EQ(model.network.sync_seconds,
                   model.local.latency_seconds + 2 * model.local.message_seconds);
}

TEST_F(LinkProbe, WhatMappedMemoryCostsIsMeasuredOnceAndAgreed) {
  const auto measured = agree(true);
  expect_all_equal(measured);
  const group::LinkModel& first = measured.front();
  const group::MemoryModel modelled;
  for (const auto field : {&group::MemoryModel::reduced, &group::MemoryModel::moved,
                           &group::MemoryModel::private_reduced}) {
    EXPECT_GE(first.memory.*field, modelled.*field / 4);
    EXPECT_LE(first.memory.*field, modelled.*field * 4);
  }
  EXPECT_EQ(first.memory.private_pair, modelled.private_pair) << "of three ranks";
  const bool was_busy = first.source == "mapped memory modelled, as the machine was busy";
  EXPECT_TRUE(was_busy || first.source == "mapped memory measured just now") << first.source;
  EXPECT_EQ(std::filesystem::exists(folder(0)), !was_busy);
  // All ranks use what rank 0 remembers.
  if (was_busy) return;
  CachedLink known{.memory = {.reduced = 1024, .moved = 4096}};
  const std::string path = std::filesystem::directory_iterator(folder(0))->path().string();
  EXPECT_FALSE(load_link(path)->is_confirmed);
  // Numbers that only one job has measured are measured again.
  save_link(path, "mapped memory", known);
  const auto again = agree(true).front();
  const CachedLink anew = *load_link(path);
  if (again.source == "mapped memory measured just now") {
    EXPECT_EQ(anew.memory.reduced, again.memory.reduced);
    EXPECT_EQ(anew.is_confirmed, are_alike(known.memory, again.memory));
  } else {  // The machine was busy.
    EXPECT_EQ(again.memory.reduced, 1024);
  }
  known.is_confirmed = true;
  save_link(path, "mapped memory", known);
  const auto remembered = agree(true);
  expect_all_equal(remembered);
  EXPECT_EQ(remembered.front().memory.reduced, 1024);
  EXPECT_EQ(remembered.front().memory.moved, 4096);
  EXPECT_EQ(remembered.front().source, "mapped memory measured 1 s ago");
}

TEST(MemoryProbe, MeasurementsAreAlikeIfTheyAreNextToEachOther) {
  const group::MemoryModel one;
  EXPECT_TRUE(are_alike(one, one));
  group::MemoryModel other = one;
  other.moved *= 2;
  other.private_reduced /= 2;
  EXPECT_TRUE(are_alike(one, other) && are_alike(other, one));
  other.moved *= 2;
  EXPECT_FALSE(are_alike(one, other) || are_alike(other, one));
  other = one;
  other.reduced *= 2;
  EXPECT_FALSE(are_alike(one, other));
  other = one;
  other.takes_lines = !one.takes_lines;
  EXPECT_FALSE(are_alike(one, other));
}

}  // namespace
}  // namespace stretto::communicator
