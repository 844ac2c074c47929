// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/plugin_factory.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "stretto/transport/loopback/world.h"

namespace stretto::job {
namespace {

std::atomic<bool> is_released = false;
std::atomic<int> stuck = 0;

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

// Waits for ranks that never come; but on the last rank, when all others do, it is of no use.
CollectiveLibrary* never_made(const LibraryGroup& group, char* text, std::size_t text_bytes) {
  if (group.rank + 1 == group.size) {
    while (stuck < group.rank) nap();
    std::snprintf(text, text_bytes, "it has no such network");
    return nullptr;
  }
  ++stuck;
  while (!is_released) nap();
  --stuck;
  return nullptr;
}

TEST(PluginFactory, WhoWaitsInALibraryHearsOfTheFailureOfAnotherRank) {
  constexpr std::size_t kRanks = 3;
  auto endpoints = transport::loopback::make_world({.ranks = kRanks}).or_throw();
  const auto factory = plugin_factory({.make_library = never_made}, kRanks);
  std::array<Status, kRanks> statuses;
  std::array<std::thread, kRanks> threads;
  for (std::size_t r = 0; r < kRanks; ++r) {
    threads[r] = std::thread([&, r] {
      auto engine =
          group::Engine::create(std::move(endpoints[r]), {.local_ranks = kRanks}).or_throw();
      statuses[r] =
          communicator::ScheduledBackend::make_world(
              std::move(engine), {.timeout = std::chrono::seconds(60), .library = factory})
              .status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stuck, kRanks - 1) << "and yet all have ended";
  for (const Status& status : statuses) {
    EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                        "rank 2 could not set up the group: it has no such network",
                        std::string(status.message()));
  }
  is_released = true;
  while (stuck > 0) nap();
}

}  // namespace
}  // namespace stretto::job
