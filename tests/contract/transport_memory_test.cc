// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// One-sided access, on every transport: regions of memory that other ranks reach.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "stretto/base/memory_limit.h"
#include "tests/contract/process_resources.h"
#include "tests/contract/transport_participant.h"

namespace stretto::transport {
namespace {

class TransportMemoryTest : public TransportTest {};
// Transports where the first two ranks share memory.
class SharedMemoryTest : public TransportTest {};
// The transport that counts what the system has left; others use memory of their own.
class ShmMemoryTest : public TransportTest {};

// Waits until `rank` can reach `peer`'s region; returns null if it cannot.
std::byte* reach(World& world, int rank, int peer, RemoteAddress address, std::size_t bytes) {
  std::byte* data = nullptr;
  (void)drive({&world[rank], &world[peer]}, [&] {
    data = world[rank].memory().resolve(peer, address, bytes);
    return data != nullptr;
  });
  return data;
}

TEST_P(TransportMemoryTest, AllocatesZeroedPages) {
  World world = make();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096},
                                  std::size_t{4097}, std::size_t{3000000}}) {
    Region region = world[0].allocate(bytes).or_throw();
    EXPECT_EQ(region.bytes.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.bytes.data()) % 4096, 0u);
    EXPECT_TRUE(std::all_of(region.bytes.begin(), region.bytes.end(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
    std::fill(region.bytes.begin(), region.bytes.end(), std::byte{1});
  }
}

TEST_P(TransportMemoryTest, ReachesExactlyWhoSharesMemory) {
  World world = make(4);
  const Region region = world[0].allocate(1000).or_throw();
  settle(world);
  for (int r = 1; r < 4; ++r) {
    const bool shares = GetParam().shares_memory(0, r);
    EXPECT_EQ(world[r].memory().reaches(0), shares) << r;
    std::byte* const data = shares ? reach(world, r, 0, region.address, 1000)
                                   : world[r].memory().resolve(0, region.address, 1000);
    EXPECT_EQ(data != nullptr, shares) << r;
  }
}

TEST_P(SharedMemoryTest, LocatesOnlyWhatLiesInOneRegion) {
  World world = make();
  ASSERT_TRUE(world[0].memory().reaches(0));
  const Region a = world[0].allocate(8192).or_throw();
  const Region b = world[0].allocate(100).or_throw();
  const std::byte* const begin = a.bytes.data();
  EXPECT_EQ(world[0].memory().locate(begin, 8192).region, a.address.region);
  EXPECT_EQ(world[0].memory().locate(begin + 8000, 192).offset_bytes, 8000u);
  EXPECT_EQ(world[0].memory().locate(b.bytes.data() + 1, 99).region, b.address.region);
  EXPECT_FALSE(world[0].memory().locate(begin + 8000, 193).valid());
  EXPECT_FALSE(world[0].memory().locate(begin, std::numeric_limits<std::size_t>::max()).valid());
  EXPECT_FALSE(world[0].memory().locate(begin - 1, 1).valid());
  const Bytes elsewhere(10);
  EXPECT_FALSE(world[0].memory().locate(elsewhere.data(), 10).valid());
  EXPECT_FALSE(world[1].memory().locate(begin, 1).valid()) << "another rank's";
  EXPECT_EQ(world[0].memory().resolve(0, world[0].memory().locate(begin + 5, 5), 5), begin + 5);
}

TEST_P(SharedMemoryTest, ChecksBounds) {
  World world = make();
  const Region region = world[0].allocate(5000).or_throw();
  const std::uint32_t number = region.address.region;
  constexpr auto kHuge = std::numeric_limits<std::uint64_t>::max();
  std::byte* const data = reach(world, 1, 0, region.address, 5000);
  ASSERT_NE(data, nullptr);
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    Endpoint& endpoint = world[rank];
    EXPECT_NE(endpoint.memory().resolve(0, {number, 4999}, 1), nullptr);
    EXPECT_NE(endpoint.memory().resolve(0, {number, 5000}, 0), nullptr);
    EXPECT_EQ(endpoint.memory().resolve(0, {number, 4999}, 2), nullptr);
    EXPECT_EQ(endpoint.memory().resolve(0, {number, 5001}, 0), nullptr);
    EXPECT_EQ(endpoint.memory().resolve(0, {number, kHuge}, 2), nullptr);
    EXPECT_EQ(endpoint.memory().resolve(0, {number, 2}, kHuge), nullptr);
    EXPECT_EQ(endpoint.memory().resolve(0, {number, kHuge - 1}, 2), nullptr);
    EXPECT_EQ(endpoint.memory().resolve(0, {number + 77, 0}, 1), nullptr);
    EXPECT_EQ(endpoint.memory().resolve(0, {}, 0), nullptr);
    EXPECT_EQ(endpoint.memory().resolve(1, region.address, 1), nullptr) << "of the wrong rank";
  }
  EXPECT_EQ(world[1].memory().resolve(0, {number, 100}, 4900), data + 100);
}

TEST_P(SharedMemoryTest, WritesAreSeenByTheOthers) {
  World world = make(3);
  const int last = GetParam().shares_memory(0, 2) ? 2 : 1;
  const Region region = world[0].allocate(100000).or_throw();
  const Bytes first = pattern(1, 100000);
  const Bytes second = pattern(2, 100000);
  std::copy(first.begin(), first.end(), region.bytes.begin());
  std::byte* const one = reach(world, 1, 0, region.address, 100000);
  std::byte* const two = reach(world, last, 0, region.address, 100000);
  ASSERT_TRUE(one != nullptr && two != nullptr);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), one));
  std::copy(second.begin(), second.end(), two);
  EXPECT_TRUE(std::equal(second.begin(), second.end(), one));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), region.bytes.begin()));
}

TEST_P(TransportMemoryTest, PrivateMemoryIsCopiedWhereItCanBeReached) {
  World world = make();
  Bytes theirs = pattern(1, 100000);
  Bytes own(100000);
  const RemoteAddress address = RemoteAddress::in_process(theirs.data() + 5);
  EXPECT_EQ(world[0].memory().resolve(1, address, 1), nullptr);
  if (!world[0].memory().reaches_private(1)) {
    EXPECT_EQ(world[0].memory().get(1, address, ByteSpan(own).first(10)).code(),
              StatusCode::internal);
    EXPECT_EQ(world[0].memory().put(1, ByteSpan(own).first(10), address).code(),
              StatusCode::internal);
    EXPECT_EQ(theirs, pattern(1, 100000));
    return;
  }
  EXPECT_TRUE(GetParam().shares_memory(0, 1));
  ASSERT_TRUE(world[0].memory().get(1, address, ByteSpan(own).first(50000)).ok());
  EXPECT_TRUE(std::equal(own.begin(), own.begin() + 50000, theirs.begin() + 5));
  const Bytes sent = pattern(2, 49999);
  ASSERT_TRUE(world[0].memory().put(1, sent, address).ok());
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), theirs.begin() + 5));
  const Bytes before = pattern(1, 100000);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 5, theirs.begin()));
  EXPECT_TRUE(std::equal(before.begin() + 50004, before.end(), theirs.begin() + 50004));
}

// A counter is in shared memory, and each side sleeps until it is notified.
TEST_P(SharedMemoryTest, NotifyWakesWhoWaitsForAWord) {
  constexpr std::uint64_t kRounds = 5000;
  World world = make();
  const Region region = world[0].allocate(4096).or_throw();
  ASSERT_NE(reach(world, 1, 0, region.address, 8), nullptr);
  std::atomic<int> overslept{0};
  on_each_rank(world, [&](Participant& self) {
    Endpoint& endpoint = self.endpoint();
    const auto parity = static_cast<std::uint64_t>(endpoint.rank().value());
    auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(
        endpoint.memory().resolve(0, region.address, sizeof(std::uint64_t)));
    for (std::uint64_t round = parity; round < kRounds && overslept < 2; round += 2) {
      while (word.load(std::memory_order_acquire) != round && overslept < 2) {
        endpoint.begin_sleep();
        const bool moved = endpoint.progress();
        if (!moved && word.load(std::memory_order_acquire) != round) {
          const TimePoint begin = Clock::now();
          endpoint.sleep(Deadline());
          const bool arrived = word.load(std::memory_order_acquire) == round;
          if (Clock::now() - begin > std::chrono::milliseconds(90) && arrived) ++overslept;
        }
        endpoint.end_sleep();
      }
      word.store(round + 1, std::memory_order_release);
      endpoint.notify(1 - endpoint.rank().value());
    }
  });
  EXPECT_LE(overslept, 1);
}

TEST_P(SharedMemoryTest, FreedRegionsAreGoneEverywhere) {
  World world = make();
  Region region = world[0].allocate(5000).or_throw();
  const RemoteAddress address = region.address;
  const std::byte* const place = region.bytes.data();
  ASSERT_NE(reach(world, 1, 0, address, 1), nullptr);
  std::shared_ptr<void> copy = region.owner;
  region.owner.reset();
  EXPECT_TRUE(world[0].memory().locate(place, 1).valid()) << "a copy of the owner is left";
  std::thread([&] { copy.reset(); }).join();
  EXPECT_FALSE(world[0].memory().locate(place, 1).valid());
  EXPECT_EQ(world[0].memory().resolve(0, address, 1), nullptr);
  EXPECT_TRUE(drive(world, [&] { return world[1].memory().resolve(0, address, 1) == nullptr; }));
  // The next region may lie where the last one was, but it is another region.
  for (int i = 0; i < 10; ++i) {
    const Region next = world[0].allocate(5000).or_throw();
    EXPECT_NE(next.address.region, address.region);
    std::byte* const data = reach(world, 1, 0, next.address, 5000);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(data[4999], std::byte{0});
    data[4999] = std::byte{9};
    EXPECT_EQ(next.bytes[4999], std::byte{9});
    EXPECT_EQ(world[0].memory().locate(next.bytes.data(), 5000).region, next.address.region);
  }
}

TEST_P(SharedMemoryTest, HeldRegionsStayMapped) {
  World world = make();
  Region region = world[0].allocate(5000).or_throw();
  region.bytes[7] = std::byte{7};
  std::byte* const data = reach(world, 1, 0, region.address, 5000);
  ASSERT_NE(data, nullptr);
  const std::shared_ptr<void> held = world[1].memory().hold(0, region.address);
  ASSERT_NE(held, nullptr);
  const RemoteAddress address = region.address;
  region = {};
  EXPECT_TRUE(drive(world, [&] { return world[1].memory().resolve(0, address, 1) == nullptr; }));
  EXPECT_EQ(data[7], std::byte{7});
  EXPECT_EQ(world[1].memory().hold(0, address), nullptr);
}

TEST_P(TransportMemoryTest, ManyRegionsLeaveNothingBehind) {
  World world = make(3);
  settle(world);
  const int descriptors = open_descriptors();
  const int mappings = shared_mappings();
  // Makes some at a time, and once more than a socket can announce before its peer looks.
  for (const int at_a_time : {1, 600, 400}) {
    std::vector<Region> regions;
    for (int i = 0; i < at_a_time; ++i) regions.push_back(world[0].allocate(100).or_throw());
    if (GetParam().shares_memory(0, 1)) {
      EXPECT_NE(reach(world, 1, 0, regions.back().address, 100), nullptr) << at_a_time;
    }
    regions.clear();
  }
  const auto clean = [&] {
    return open_descriptors() == descriptors && shared_mappings() == mappings;
  };
  for (int i = 0; i < 100 && !clean(); ++i) settle(world);
  EXPECT_TRUE(clean()) << open_descriptors() - descriptors << " descriptors, "
                       << shared_mappings() - mappings << " mappings";
}

TEST_P(TransportMemoryTest, RefusesWhatCannotFit) {
  World world = make();
  constexpr std::size_t kPebibyte = std::size_t{1} << 50;
  EXPECT_EQ(world[0].allocate(kPebibyte).status().code(), StatusCode::out_of_memory);
  EXPECT_EQ(world[0].allocate(std::numeric_limits<std::size_t>::max()).status().code(),
            StatusCode::out_of_memory);
  EXPECT_TRUE(world[0].allocate(1).ok());
  // The kernel cannot map it either, which is another failure.
  world[0].check_memory(false);
  EXPECT_EQ(world[0].allocate(kPebibyte).status().code(), StatusCode::system);
}

// Regions cost nothing until they are touched, but memory that has been promised to one rank is no
// longer there for any other.
TEST_P(ShmMemoryTest, GivesNothingTwice) {
  World world = make();
  const std::size_t part = find_memory_left()->left_bytes / 5 * 2;
  Region own = world[0].allocate(part).or_throw();
  Region other = world[1].allocate(part).or_throw();
  ASSERT_NE(reach(world, 0, 1, other.address, part), nullptr);
  EXPECT_EQ(world[0].allocate(part).status().code(), StatusCode::out_of_memory);
  const RemoteAddress address = other.address;
  other = {};
  (void)drive(world, [&] { return world[0].memory().resolve(1, address, 1) == nullptr; });
  EXPECT_TRUE(world[0].allocate(part).ok());
}

// One of several worlds must leave nothing: UCX keeps the connections of a rank that could not say
// goodbye in time, as happens on a busy machine.
TEST_P(TransportMemoryTest, WorldsLeaveNothingBehind) {
  constexpr int kAttempts = 4;
  // An MPI starts with the first world, and keeps what it has opened until the process ends.
  (void)make(3);
  const int mappings = shared_mappings();
  int left = 1;
  for (int attempt = 0; left != 0 && attempt < kAttempts; ++attempt) {
    const int descriptors = open_descriptors();
    Region kept;
    {
      World world = make(3);
      kept = world[0].allocate(5000).or_throw();
      const Region other = world[1].allocate(5000).or_throw();
      settle(world);
      // All ranks end at the same time, as processes do.
      on_threads_of(world.endpoints, [](auto& endpoint) { endpoint.reset(); });
    }
    left = open_descriptors() - descriptors;
    // A region outlives its endpoint.
    kept.bytes[4999] = std::byte{1};
    kept = {};
    EXPECT_EQ(shared_mappings(), mappings);
  }
  EXPECT_EQ(left, 0);
}

INSTANTIATE_TEST_SUITE_P(Worlds, TransportMemoryTest, ::testing::ValuesIn(world_kinds()),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Worlds, SharedMemoryTest,
                         ::testing::ValuesIn(world_kinds_where([](const WorldKind& kind) {
                           return kind.shares_memory(0, 1);
                         })),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Worlds, ShmMemoryTest,
                         ::testing::ValuesIn(world_kinds_where([](const WorldKind& kind) {
                           return kind.link_name(0, 1) == "shm" && !kind.is_mixed;
                         })),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace stretto::transport
