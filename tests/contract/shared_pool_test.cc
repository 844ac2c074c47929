// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Registered memory as programs use it: groups that run at the same time share it, it is made and
// freed over and over, and sometimes there is none left.

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <optional>
#include <set>
#include <thread>

#include "stretto/base/memory_limit.h"
#include "stretto/job/join.h"
#include "tests/contract/process_resources.h"
#include "tests/contract/world_ranks.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/fake_environment.h"
#include "tests/support/on_threads.h"
#include "tests/support/soon.h"

namespace stretto::testing {
namespace {

using std::chrono::milliseconds;
using transport::WorldKind;

RankList make(const WorldKind& kind, int size, Duration heartbeat = milliseconds(50)) {
  return make_world_ranks(kind, size, heartbeat);
}

class SharedPool : public ::testing::TestWithParam<WorldKind> {};
INSTANTIATE_TEST_SUITE_P(, SharedPool, ::testing::ValuesIn(transport::world_kinds_for_groups()),
                         ::testing::PrintToStringParamName());

const std::vector<Rank> kAll = {0, 1, 2};

TEST_P(SharedPool, GroupsThatOverlapWorkOnSlicesOfOneRegionAtTheSameTime) {
  const std::vector<std::vector<Rank>> lists = {{0, 1, 2}, {2, 0, 1}, {1, 2}, {0, 1}};
  // This is no whole number of cache lines, so neighbours' bytes share a line.
  constexpr std::size_t kCount = 1501;
  on_all(make(GetParam(), 3), [&](Communicator& comm) {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (const auto& list : lists) groups.push_back(comm.new_group(list));
    const auto region = comm.allocate<float>(2 * kCount * lists.size());
    on_threads(lists.size(), [&](std::size_t g) {
      if (groups[g] == nullptr) return;
      const auto slice = region.span().subspan(2 * kCount * g, 2 * kCount);
      for (int round = 0; round < 60; ++round) {
        const std::size_t begin = round % 3 == 0 ? kCount : 0;
        const std::size_t count = round % 2 == 0 ? kCount : 5;
        expect_sums(*groups[g], comm.rank(), lists[g], slice.subspan(begin, count), round);
      }
    });
  });
}

struct ProcessResources {
  int descriptors = 0;
  int mappings = 0;
  long resident_pages = 0;
};

ProcessResources resources() {
  ProcessResources found{.descriptors = transport::open_descriptors(),
                         .mappings = transport::shared_mappings()};
  long pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> found.resident_pages;
  return found;
}

// Waits until all ranks have heard, at a heartbeat, of what the others have freed. Returns what is
// left.
ProcessResources resources_at_most(const ProcessResources& before) {
  ProcessResources now;
  (void)comes_true([&] {
    now = resources();
    return now.descriptors <= before.descriptors && now.mappings <= before.mappings;
  });
  return now;
}

// Calls `body` for rounds 0 to 999, and looks whether anything grows after the first hundred.
void expect_no_growth(RankList& ranks, const std::function<void(Communicator&, int)>& body) {
  const auto run = [&](int begin, int end) {
    on_all(ranks, [&](Communicator& comm) {
      for (int round = begin; round < end; ++round) body(comm, round);
      comm.barrier().wait();
    });
  };
  run(0, 100);
  std::this_thread::sleep_for(milliseconds(150));
  const ProcessResources before = resources();
  run(100, 1000);
  const ProcessResources after = resources_at_most(before);
  EXPECT_LE(after.descriptors, before.descriptors);
  EXPECT_LE(after.mappings, before.mappings);
#if !defined(__SANITIZE_ADDRESS__)  // It keeps freed memory, to watch it.
  // 3 ranks that keep 900 regions, of one and of three pages, would have 5400 more.
  EXPECT_LT(after.resident_pages, before.resident_pages + 4000);
#endif
}

TEST_P(SharedPool, RegionsThatComeAndGoLeaveNothingBehind) {
  auto ranks = make(GetParam(), 3);
  expect_no_growth(ranks, [](Communicator& comm, int round) {
    const auto region = comm.allocate<float>(round % 2 == 0 ? 3000 : 20);
    expect_sums(comm, comm.rank(), kAll, region.span(), round);
    if (round % 4 == 0) expect_sums(comm, comm.rank(), kAll, region.span(), round + 1);
  });
}

// Each group has memory of its own.
TEST_P(SharedPool, GroupsThatComeAndGoLeaveNothingBehind) {
  auto ranks = make(GetParam(), 3);
  expect_no_growth(ranks, [](Communicator& comm, int round) {
    if (round % 10 != 0) return;
    const auto group = comm.new_group({2, 0, 1});
    std::array<float, 3> data{};
    expect_sums(*group, comm.rank(), kAll, data, round);
  });
}

// One rank frees memory that the others have used, and gets another region at the same address. The
// program tells nobody.
TEST_P(SharedPool, AnotherRegionAtTheSameAddressIsAnother) {
  constexpr std::size_t kCount = 40000;
  auto ranks = make(GetParam(), 3);
  int returned = 0;
  on_all(ranks, [&](Communicator& comm) {
    std::optional<Buffer<float>> region = comm.allocate<float>(kCount);
    std::set<const float*> places;  // Addresses of earlier regions.
    for (int round = 0; round < 90; round += 3) {
      // Often enough for the others to remember its address.
      for (int i = 0; i < 3; ++i) expect_sums(comm, comm.rank(), kAll, region->span(), round + i);
      if (round % 9 != 3 * comm.rank().value()) continue;
      places.insert(region->data());
      region.reset();
      region = comm.allocate<float>(kCount);
      ASSERT_EQ((*region)[kCount / 2], 0.f) << "it is new";
      if (comm.rank() == 0 && places.contains(region->data())) ++returned;
    }
  });
  EXPECT_GT(returned, 0) << "no address came again: nothing was tested";
}

// An operation that has ended here may still run on other ranks, but not on this rank's memory.
TEST_P(SharedPool, ARegionMayGoAsSoonAsItsOperationHasEnded) {
  on_all(make(GetParam(), 3), [](Communicator& comm) {
    for (int round = 0; round < 60; ++round) {
      const auto late = (comm.rank().value() + round) % 3;
      if (round % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300 * late));
      const Rank root = round % 3;
      auto data = comm.allocate<float>(30000);
      if (comm.rank() == root) std::fill(data.begin(), data.end(), static_cast<float>(round));
      comm.broadcast(data, {.root = root}).wait();
      ASSERT_EQ(data[29999], static_cast<float>(round));
    }
  });
}

TEST_P(SharedPool, WhatCannotFitIsRefusedAndTheRestGoesOn) {
  on_all(make(GetParam(), 3), [](Communicator& comm) {
    const auto region = comm.allocate<float>(100);
    expect_sums(comm, comm.rank(), kAll, region.span(), 1);
    if (comm.rank() != 0) {
      const Status refused =
          failure_of<OutOfMemory>([&] { (void)comm.allocate_bytes(std::size_t{1} << 50); });
      const std::string begin = "rank " + std::to_string(comm.rank().value()) +
                                ": 1125899906842624 bytes (1.0 PiB) of memory do not fit: ";
      EXPECT_TRUE(refused.message().starts_with(begin)) << refused.message();
      expect_contains(refused.message(), " grants");
      EXPECT_EQ(refused.rank(), comm.rank());
    }
    expect_sums(comm, comm.rank(), kAll, region.span(), 2);
    const auto more = comm.allocate<float>(100000);
    expect_sums(comm, comm.rank(), kAll, more.span(), 3);
  });
}

// Memory that is mapped and not yet touched counts as used; but a rank may be about to free it.
TEST(PoolOfAHost, WhatIsFreedSoonIsWaitedFor) {
  auto ranks = make(transport::kind_named("shm"), 2, milliseconds(500));
  const std::size_t most_of_it = find_memory_left()->left_bytes / 5 * 3;
  on_all(ranks, [&](Communicator& comm) {
    constexpr std::size_t kCount = 1 << 18;
    Memory memory = comm.allocate_bytes(comm.rank() == 0 ? most_of_it : kCount * sizeof(float));
    // A rank that reads the region has heard of it; so many bytes are not sent, but read in place.
    const std::span data(reinterpret_cast<float*>(memory.bytes().data()), kCount);
    expect_sums(comm, comm.rank(), {0, 1}, data, 1);
    if (comm.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(100));
      memory = Memory();
    } else {
      const TimePoint begin = Clock::now();
      memory = comm.allocate_bytes(most_of_it);
      EXPECT_GT(Clock::now() - begin, milliseconds(20)) << "it did not have to wait";
    }
    comm.barrier().wait();
    EXPECT_EQ(memory.bytes().size(), comm.rank() == 0 ? 0 : most_of_it);
  });
}

TEST(MemoryCheck, IsSwitchedOffByTheEnvironment) {
  constexpr std::size_t kPebibyte = std::size_t{1} << 50;
  const FakeEnvironment on(Variables{{"STRETTO_MEMORY_CHECK", "on"}});
  EXPECT_THROW((void)join({.environment = &on})->allocate_bytes(kPebibyte), OutOfMemory);
  // Without the check, the kernel refuses to map it.
  const FakeEnvironment off(Variables{{"STRETTO_MEMORY_CHECK", "off"}});
  EXPECT_THROW((void)join({.environment = &off})->allocate_bytes(kPebibyte), SystemError);
  const FakeEnvironment nonsense(Variables{{"STRETTO_MEMORY_CHECK", "perhaps"}});
  EXPECT_THROW((void)join({.environment = &nonsense}), InvalidArgument);
}

}  // namespace
}  // namespace stretto::testing
