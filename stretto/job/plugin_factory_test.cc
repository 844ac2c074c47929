// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/plugin_factory.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <thread>

#include "stretto/transport/loopback/world.h"
#include "tests/support/expect_contains.h"
#include "tests/support/on_threads.h"

namespace stretto::job {
namespace {

constexpr std::size_t kRanks = 3;

std::atomic<int> made = 0;       // Number of libraries.
std::atomic<int> connected = 0;  // Libraries that have met the others.
std::atomic<int> destroyed = 0;

// Has met the others, or has failed to, when it has been asked `asked` times; never, if `asked` is
// negative.
class Library final : public CollectiveLibrary {
 public:
  Library(int asked, const char* failure) : left_(asked), failure_(failure) { ++made; }
  ~Library() override { ++destroyed; }

  const char* name() const override { return "a library"; }
  LibraryFailure failure() const override {
    return {left_ == 0 && *failure_ != '\0' ? StatusCode::system : StatusCode::ok, failure_};
  }
  bool can_run(const OperationDescriptor&) const override { return false; }
  bool gives_buffers_back() const override { return true; }
  int start(const LibraryCall&) override { return 0; }
  bool has_ended(int) override { return true; }
  void abandon() override {}
  bool is_connected() override {
    if (left_ > 0 && --left_ == 0) ++connected;
    return left_ == 0;
  }

 private:
  int left_;
  const char* failure_;
};

// Libraries wait for ranks that never come. When all others wait, the last rank cannot make one.
CollectiveLibrary* never_connected(const LibraryGroup& group, char* text, std::size_t text_bytes) {
  if (group.rank + 1 < group.size) return new Library(-1, "");
  while (made < group.rank) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::snprintf(text, text_bytes, "it has no such network");
  return nullptr;
}

// Rank 1 finds that its library fails only when it is to meet the others.
CollectiveLibrary* fails_to_connect(const LibraryGroup& group, char*, std::size_t) {
  return group.rank == 1 ? new Library(3, "the network is down") : new Library(-1, "");
}

CollectiveLibrary* connected_late(const LibraryGroup& group, char*, std::size_t) {
  return new Library(2 + group.rank, "");
}

// Returns how the set-up of each rank has ended.
std::array<Status, kRanks> made_with(MakeLibrary make_library) {
  made = connected = destroyed = 0;
  auto endpoints = transport::loopback::make_world({.ranks = kRanks}).or_throw();
  const auto factory = plugin_factory({.make_library = make_library}, kRanks);
  std::array<Status, kRanks> statuses;
  on_threads(kRanks, [&](std::size_t r) {
    auto engine =
        group::Engine::create(std::move(endpoints[r]), {.local_ranks = kRanks}).or_throw();
    statuses[r] = communicator::ScheduledBackend::make_world(
                      std::move(engine), {.timeout = std::chrono::seconds(60), .library = factory})
                      .status();
  });
  return statuses;
}

void expect_all_say(const std::array<Status, kRanks>& statuses, const char* expected) {
  for (const Status& status : statuses) {
    expect_contains(status.message(), expected);
  }
}

TEST(PluginFactory, WhoWaitsInALibraryHearsOfTheFailureOfAnotherRank) {
  expect_all_say(made_with(never_connected),
                 "rank 2 could not set up the group: it has no such network");
  EXPECT_EQ(destroyed, 2) << "given up, and yet there";
}

TEST(PluginFactory, ALibraryThatCannotMeetTheOthersFailsAll) {
  expect_all_say(made_with(fails_to_connect),
                 "rank 1 could not set up the group: the network is down");
  EXPECT_EQ(destroyed, made);  // A rank that hears of it early has made none.
}

TEST(PluginFactory, ALibraryThatMeetsTheOthersLaterIsWaitedFor) {
  for (const Status& status : made_with(connected_late)) EXPECT_TRUE(status.ok());
  EXPECT_EQ(connected, 3);
}

}  // namespace
}  // namespace stretto::job
