// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "stretto/group/group.h"
#include "stretto/group/packing.h"
#include "stretto/transport/loopback/world.h"
#include "tests/support/fake_link.h"
#include "tests/support/held_plane.h"
#include "tests/support/recording_listener.h"
#include "tests/support/soon.h"

namespace stretto::group {
namespace {

// Rank 0 of three ranks, which hears of groups that the others have abandoned.
class AbandonedGroups : public ::testing::Test {
 protected:
  void abandon(Rank from, std::uint64_t group, std::string why) {
    transport::Endpoint& rank = *world_[static_cast<std::size_t>(from)];
    rank.announce_abort(group, std::vector<Rank>{0}, {StatusCode::aborted, std::move(why), from},
                        transport::GroupStage::set_up);
    rank.progress();
    engine_->turn();
  }
  // Returns the failure of a group that rank 0 makes of itself and rank 1.
  std::string failure_of(std::uint64_t group) {
    const EngineLock held(*engine_);
    return std::string(Group(engine_, {.group = group, .members = {0, 1}}, {}).failure().message());
  }

  std::vector<std::unique_ptr<transport::Endpoint>> world_ =
      transport::loopback::make_world({.ranks = 3}).or_throw();
  const std::shared_ptr<Engine> engine_ =
      Engine::create(std::move(world_[0]), {.heartbeat = Duration::zero()}).or_throw();
};

// A peer chooses each number and text, and the group may never be made.
TEST_F(AbandonedGroups, TheLastOfEachRankAreRemembered) {
  constexpr std::uint64_t kFirst = 100, kLast = 5000;
  abandon(1, kFirst - 1, "no more of it");
  for (std::uint64_t group = kFirst; group <= kLast; ++group) abandon(2, group, "nor of this");
  EXPECT_EQ(failure_of(kFirst - 1), "no more of it") << "rank 2 has pushed it out";
  for (std::uint64_t group = kFirst; group <= kLast; ++group) abandon(1, group, "enough");
  EXPECT_EQ(failure_of(kLast), "enough");
  EXPECT_EQ(failure_of(kLast - 500), "enough");
  EXPECT_EQ(failure_of(kFirst), "") << "it has not been forgotten";
}

TEST_F(AbandonedGroups, OnlyMembersAreBelieved) {
  std::unique_ptr<Group> made;
  {
    const EngineLock held(*engine_);
    made = std::make_unique<Group>(engine_, execution::Membership{.group = 7, .members = {0, 1}},
                                   Group::Options{});
  }
  abandon(2, 7, "no member");
  abandon(2, 8, "no member");
  abandon(1, 8, "a member");
  EXPECT_EQ(failure_of(8), "a member");
  const EngineLock held(*engine_);
  EXPECT_TRUE(made->failure().ok()) << made->failure().message();
  made.reset();
}

// A rank alone, with a library that moves bytes for it, and a progress thread.
struct RankWithLibrary {
  transport::HeldPlane* library = nullptr;
  std::shared_ptr<Engine> engine = make();

  // Whether the progress thread pushes out what is left to the library.
  bool pushes() {
    {
      const EngineLock held(*engine);  // As when an operation is submitted.
      library->to_push = 5;
    }
    const Deadline soon = Deadline::after(std::chrono::seconds(10));
    while (library->to_push > 0 && !soon.passed()) std::this_thread::yield();
    return library->to_push == 0;
  }

 private:
  std::shared_ptr<Engine> make() {
    auto plane = std::make_unique<transport::HeldPlane>();
    library = plane.get();
    transport::Endpoint::Parts parts{.rank = 0, .data_plane = std::move(plane)};
    parts.links = RankVector<std::unique_ptr<transport::Link>>(1);
    parts.processes = RankVector<transport::ProcessHandle>(1);
    return Engine::create(
               transport::Endpoint::create(std::move(parts)).or_throw(),
               {.progress_thread = ProgressThread::always, .heartbeat = std::chrono::hours(1)})
        .or_throw();
  }
};

// An MPI moves the end of a long message only while somebody calls it. Without that call the
// receiver would wait as long as the program computes, or for a heartbeat.
TEST(Engine, WhatOperationsHaveLeftToALibraryGoesOutWhileTheProgramComputes) {
  RankWithLibrary rank;
  for (int message = 0; message < 3; ++message) EXPECT_TRUE(rank.pushes());
}

// Otherwise the progress thread would believe that another thread still makes progress.
TEST(Engine, AWaitThatThrowsIsOver) {
  RankWithLibrary rank;
  const auto fails = []() -> bool { throw std::bad_alloc(); };
  EXPECT_THROW((void)rank.engine->drive(fails, Deadline()), std::bad_alloc);
  EXPECT_TRUE(rank.pushes());
}

// Returns how often the only progress thread of this process has gone to sleep.
int sleeps_of_progress_thread() {
  int sleeps = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream comm(task.path() / "comm"), status(task.path() / "status");
    std::string line;
    if (!std::getline(comm, line) || line != "stretto-engine") continue;
    while (status >> line && line != "voluntary_ctxt_switches:") continue;
    status >> sleeps;
  }
  return sleeps;
}

// Waking the thread takes longer than a whole short operation.
TEST(Engine, AWaitThatLeavesNothingToDoDoesNotWakeTheProgressThread) {
  constexpr int kWaits = 20;
  const RankWithLibrary rank;
  ASSERT_TRUE(comes_true([] { return sleeps_of_progress_thread() > 0; }));
  const int before = sleeps_of_progress_thread();
  for (int wait = 0; wait < kWaits; ++wait) {
    EXPECT_TRUE(rank.engine->drive([] { return true; }, Deadline()));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_LT(sleeps_of_progress_thread() - before, kWaits / 2);
}

// The large operations of another group may move all the time.
TEST(Engine, AWaitEndsAtItsDeadlineThoughSomethingMoves) {
  RankWithLibrary rank;
  const Deadline stop = Deadline::after(std::chrono::seconds(10));
  const auto never = [&] {
    rank.library->moves = !stop.passed();
    return false;
  };
  EXPECT_FALSE(rank.engine->drive(never, Deadline::after(std::chrono::milliseconds(1))));
  EXPECT_TRUE(rank.library->moves.exchange(false)) << "it has waited for that to end";
}

// A rank alone, for which only threads of the test make progress.
std::shared_ptr<Engine> make_quiet_engine() {
  auto world = transport::loopback::make_world({.ranks = 1}).or_throw();
  return Engine::create(std::move(world[0]), {.heartbeat = Duration::zero()}).or_throw();
}

TEST(Engine, AContinuationMayThrowWhatItLikes) {
  const auto engine = make_quiet_engine();
  int called = 0;
  {
    const EngineLock held(*engine);
    engine->call_later([](const Status&) { throw 1; }, {});
    engine->call_later([&](const Status&) { ++called; }, {});
  }
  EXPECT_NO_THROW(engine->turn());
  EXPECT_EQ(called, 1);
}

// Two continuations are called in one turn. Returns whether the first may wait for the second while
// another thread runs `make_progress`.
template <class MakeProgress>
bool may_wait_for_the_second(MakeProgress make_progress) {
  const auto engine = make_quiet_engine();
  std::atomic<bool> is_called{false};
  bool has_waited_well = false;
  std::thread other;
  {
    const EngineLock held(*engine);
    const auto wait_for_second = [&](const Status&) {
      other = std::thread([&] { make_progress(*engine, is_called); });
      has_waited_well =
          comes_true([&] { return is_called.load(); }, Deadline::after(std::chrono::seconds(5)));
    };
    engine->call_later(wait_for_second, {});
    engine->call_later([&](const Status&) { is_called = true; }, {});
  }
  engine->turn();
  other.join();
  return has_waited_well;
}

TEST(Engine, AContinuationMayWaitForTheNextWhileAnotherThreadPolls) {
  EXPECT_TRUE(may_wait_for_the_second([](Engine& engine, const auto&) { engine.turn(); }));
}

// Nothing moves, so the other thread would sleep.
TEST(Engine, AContinuationMayWaitForTheNextWhileAnotherThreadWaits) {
  EXPECT_TRUE(may_wait_for_the_second([](Engine& engine, const std::atomic<bool>& is_called) {
    (void)engine.drive([&] { return is_called.load(); }, Deadline::after(std::chrono::seconds(10)));
  }));
}

// Returns how long the first of two continuations waits for the second, which a thread calls that
// has been asleep.
Duration wait_for_a_sleeper() {
  const auto engine = make_quiet_engine();
  std::atomic<bool> is_called{false};
  Duration waited{};
  const auto wait_until_called = [&] {
    (void)engine->drive([&] { return is_called.load(); },
                        Deadline::after(std::chrono::seconds(10)));
  };
  std::thread sleeper(wait_until_called);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  {
    const EngineLock held(*engine);
    const auto wait_for_second = [&](const Status&) {
      const TimePoint begun = Clock::now();
      (void)comes_true([&] { return is_called.load(); }, Deadline::after(std::chrono::seconds(5)));
      waited = Clock::now() - begun;
    };
    engine->call_later(wait_for_second, {});
    engine->call_later([&](const Status&) { is_called = true; }, {});
  }
  wait_until_called();
  sleeper.join();
  return waited;
}

// If it were not woken, it would sleep for 50 ms more each time.
TEST(Engine, WhoSleepsIsWokenForTheNextContinuation) {
  Duration least = Duration::max();
  for (int i = 0; i < 5; ++i) least = std::min(least, wait_for_a_sleeper());
  EXPECT_LT(least, std::chrono::milliseconds(25));
}

TEST(Engine, WhereTheProgressThreadEndsEarlyAllGroupsFail) {
  RankWithLibrary rank;
  std::unique_ptr<Group> made;
  {
    const EngineLock held(*rank.engine);
    made = std::make_unique<Group>(rank.engine,
                                   execution::Membership{.group = 7, .rank = 0, .members = {0}},
                                   Group::Options{});
    rank.library->throws = true;
    rank.library->to_push = 1;
  }
  Status failure;
  const Deadline soon = Deadline::after(std::chrono::seconds(10));
  while (failure.ok() && !soon.passed()) {
    std::this_thread::yield();
    const EngineLock held(*rank.engine);
    failure = made->failure();
  }
  EXPECT_EQ(failure.code(), StatusCode::internal);
  EXPECT_EQ(failure.message(),
            "the thread that makes progress for rank 0 has ended: the library is broken");
  const EngineLock held(*rank.engine);
  made.reset();
}

TEST(ScratchPool, LendsTheSmallestThatFitsAndTakesLittleMore) {
  constexpr std::size_t kMiB = 1024 * 1024;
  const auto world = transport::loopback::make_world({.ranks = 1}).or_throw();
  ScratchPool pool;
  transport::Region large = pool.take(33 * kMiB, *world[0]).or_throw();
  transport::Region small = pool.take(kMiB, *world[0]).or_throw();
  EXPECT_LT(large.bytes.size(), 40 * kMiB);
  const std::byte* const data = large.bytes.data();
  pool.give_back(std::move(large));
  pool.give_back(std::move(small));
  small = pool.take(1024, *world[0]).or_throw();
  EXPECT_EQ(pool.take(33 * kMiB, *world[0]).or_throw().bytes.data(), data);
}

// Of four ranks, rank 2 computes and rank 3 is stopped.
TEST(Inquiry, WhoDoesNotAnswerIsNamedBesideWhoHasNotEntered) {
  auto world = transport::loopback::make_world({.ranks = 4}).or_throw();
  const auto engine =
      Engine::create(std::move(world[0]), {.heartbeat = Duration::zero()}).or_throw();
  const execution::Membership all{.group = 7, .rank = 0, .members = {0, 1, 2, 3}};
  Inquiry inquiry(*engine, all);
  const EngineLock held(*engine);
  inquiry.begin(1, {.collective = Collective::barrier}, Clock::now());
  inquiry.take(1, 1, encode({true, {2, 3}, "is in barrier() #1"}));
  inquiry.take(2, 1, encode({.text = "has called no collective of the group"}));
  for (const std::vector<Rank>& waited_for : {std::vector<Rank>{2, 3}, {1}}) {
    const Late late = inquiry.find_late(1, waited_for);
    EXPECT_EQ(late.ranks, (std::vector<Rank>{2, 3}));
    EXPECT_EQ(late.culprit, std::nullopt) << "either may be at fault";
  }
}

// Returns how many others rank 0 of seventy asks while it waits for rank 5.
std::ptrdiff_t asked_about(const OperationDescriptor& operation) {
  constexpr int kRanks = 70;
  transport::Endpoint::Parts parts{.rank = 0};
  parts.links = RankVector<std::unique_ptr<transport::Link>>(kRanks);
  execution::Membership all{.group = 7, .rank = 0, .members = RankVector<Rank>(kRanks)};
  std::vector<const transport::FakeLink*> links;
  for (int r = 0; r < kRanks; ++r) {
    all.members[r] = r;
    if (r == 0) continue;
    auto link = std::make_unique<transport::FakeLink>();
    links.push_back(link.get());
    parts.links[r] = std::move(link);
  }
  const auto engine = Engine::create(transport::Endpoint::create(std::move(parts)).or_throw(),
                                     {.heartbeat = Duration::zero()})
                          .or_throw();
  Inquiry inquiry(*engine, all);
  const EngineLock held(*engine);
  inquiry.begin(1, operation, Clock::now());
  inquiry.ask_about(1, operation, {5});
  return std::ranges::count_if(links, [](const auto* link) { return !link->written.empty(); });
}

// In its report, a rank names only the first few of the ranks for which it waits.
TEST(Inquiry, OfAMonitoredBarrierEverybodyIsAskedInLargeGroupsToo) {
  EXPECT_EQ(asked_about({.collective = Collective::barrier}), 1);
  EXPECT_EQ(asked_about({.collective = Collective::barrier, .layout = kMonitoredLayout}), 69);
}

struct Loss {
  Duration taken;  // Since the launcher was first asked.
  std::string text;
};

// Loses rank 1: its link has ended, and the launcher tells of it 20 ms later. `wait` waits until
// the second argument, a function, returns true.
template <class Wait>
Loss lose_rank_1(Duration heartbeat, Wait wait) {
  constexpr std::chrono::milliseconds kLater(20);
  auto link = std::make_unique<transport::FakeLink>();
  link->ended = true;
  transport::Endpoint::Parts parts{.rank = 0};
  parts.links = RankVector<std::unique_ptr<transport::Link>>(2);
  parts.links[1] = std::move(link);
  std::optional<TimePoint> first_asked;
  const auto find_obituary = [&](Rank rank) {
    EXPECT_EQ(rank, Rank(1));
    const TimePoint now = Clock::now();
    if (!first_asked) first_asked = now;
    return std::optional<std::string>(now < *first_asked + kLater ? "" : "killed");
  };
  const auto engine = Engine::create(transport::Endpoint::create(std::move(parts)).or_throw(),
                                     {.progress_thread = ProgressThread::never,
                                      .heartbeat = heartbeat,
                                      .find_obituary = find_obituary})
                          .or_throw();
  const auto lost = [&] { return !engine->transport().peer_status(1).status.ok(); };
  wait(*engine, lost);
  const EngineLock held(*engine);
  return {Clock::now() - first_asked.value_or(TimePoint()),
          std::string(engine->transport().peer_status(1).status.message())};
}

// Nothing wakes a sleeping thread when the launcher tells of a death.
TEST(Engine, ASleeperAsksOftenHowALostRankHasEnded) {
  const Loss loss = lose_rank_1(Duration::zero(), [](Engine& engine, const auto& lost) {
    EXPECT_TRUE(engine.drive(lost, Deadline::after(std::chrono::seconds(10))));
  });
  EXPECT_EQ(loss.text, "lost rank 1 (fake): killed");
  EXPECT_LT(loss.taken, std::chrono::milliseconds(90));
}

TEST(Engine, SoDoesARankWhoseProgramIsBusyElsewhere) {
  constexpr std::chrono::milliseconds kHeartbeat(1000);
  const Loss loss = lose_rank_1(kHeartbeat, [](Engine& engine, const auto& lost) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(10));
    while (!deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const EngineLock held(engine);
      if (lost()) break;
    }
  });
  EXPECT_EQ(loss.text, "lost rank 1 (fake): killed");
  EXPECT_LT(loss.taken, kHeartbeat / 2);
}

// What an abort with `stage` means to rank 0, which is setting the group up: its failure then, and
// its failure when the group has been made.
struct Heard {
  Status while_set_up;
  Status when_made;
  std::optional<transport::GroupStage> passed_on;
};

Heard hear(transport::GroupStage stage) {
  auto world = transport::loopback::make_world({.ranks = 3}).or_throw();
  const auto engine =
      Engine::create(std::move(world[0]), {.heartbeat = Duration::zero()}).or_throw();
  transport::RecordingListener third;
  world[2]->set_listener(&third);
  const std::vector<Rank> members = {0, 1, 2};
  std::unique_ptr<Group> made;
  {
    const EngineLock held(*engine);
    made = std::make_unique<Group>(
        engine, execution::Membership{.group = 7, .rank = 0, .members = members}, Group::Options{});
  }
  world[1]->announce_abort(7, members, {StatusCode::timeout, "rank 2 is late", Rank(2)}, stage);
  world[2]->progress();
  third.aborted.clear();
  engine->turn();
  Heard heard;
  const EngineLock held(*engine);
  heard.while_set_up = made->failure();
  made->begin_numbering();
  heard.when_made = made->failure();
  world[2]->progress();
  if (!third.aborted.empty()) heard.passed_on = third.aborted.back().stage;
  made.reset();
  return heard;
}

TEST(Engine, AGroupIsMadeThatOthersHaveMadeAndAbandoned) {
  const Heard heard = hear(transport::GroupStage::in_use);
  EXPECT_TRUE(heard.while_set_up.ok()) << heard.while_set_up.message();
  EXPECT_EQ(heard.when_made.message(), "rank 2 is late");
  EXPECT_EQ(heard.when_made.rank(), Rank(2));
  EXPECT_EQ(heard.passed_on, transport::GroupStage::in_use);
}

TEST(Engine, AGroupIsNotMadeThatAnotherCannotMake) {
  const Heard heard = hear(transport::GroupStage::set_up);
  EXPECT_EQ(heard.while_set_up.message(), "rank 2 is late");
  EXPECT_EQ(heard.passed_on, transport::GroupStage::set_up);
}

// The parent may be aborted when the ranks have agreed to make the group, before it exists.
TEST(Engine, AGroupEndsThatIsMadeOfOneAbortedMeanwhile) {
  auto world = transport::loopback::make_world({.ranks = 2}).or_throw();
  const auto engine =
      Engine::create(std::move(world[0]), {.heartbeat = Duration::zero()}).or_throw();
  const execution::Membership pair{.group = 7, .rank = 0, .members = {0, 1}};
  const EngineLock held(*engine);
  Group parent(engine, pair, {});
  parent.begin_numbering();
  Group before(engine, {.group = 8, .rank = 0, .members = {0, 1}}, {.ancestors = {7}});
  before.fail_with_until_set_up(parent);
  EXPECT_TRUE(before.failure().ok());
  parent.abort({StatusCode::aborted, "rank 0 aborted: enough", Rank(0)});
  Group after(engine, {.group = 9, .rank = 0, .members = {0, 1}}, {.ancestors = {7}});
  after.fail_with_until_set_up(parent);
  for (const Group* const group : {&before, &after}) {
    EXPECT_EQ(group->failure().message(),
              "ended with the communicator of which it was made: rank 0 aborted: enough");
  }
}

// A rank that cannot begin to make the group does not answer those that have begun.
TEST(Engine, AGroupEndsThatIsMadeOfOneThatFailsMeanwhile) {
  auto world = transport::loopback::make_world({.ranks = 2}).or_throw();
  const auto engine =
      Engine::create(std::move(world[0]), {.heartbeat = Duration::zero()}).or_throw();
  const EngineLock held(*engine);
  Group parent(engine, {.group = 7, .rank = 0, .members = {0, 1}}, {});
  parent.begin_numbering();
  Group made(engine, {.group = 8, .rank = 0, .members = {0, 1}}, {.ancestors = {7}});
  made.fail_with_until_set_up(parent);
  made.begin_numbering();
  Group before(engine, {.group = 9, .rank = 0, .members = {0, 1}}, {.ancestors = {7}});
  before.fail_with_until_set_up(parent);
  parent.fail({StatusCode::timeout, "rank 1 is late", Rank(1)}, true);
  Group after(engine, {.group = 10, .rank = 0, .members = {0, 1}}, {.ancestors = {7}});
  after.fail_with_until_set_up(parent);
  for (const Group* const group : {&before, &after}) {
    EXPECT_EQ(group->failure().message(),
              "ended with the communicator of which it was made: rank 1 is late");
  }
  EXPECT_TRUE(made.failure().ok());
}

TEST(Engine, WhyAnotherHasGivenAGroupUpIsWhyItsSetUpFailsToo) {
  auto world = transport::loopback::make_world({.ranks = 2}).or_throw();
  const auto engine =
      Engine::create(std::move(world[0]), {.heartbeat = Duration::zero()}).or_throw();
  const EngineLock held(*engine);
  Group made(engine, {.group = 7, .rank = 0, .members = {0, 1}}, {});
  made.aborted(1, {StatusCode::timeout, "rank 2 is late", Rank(2)}, transport::GroupStage::in_use);
  made.fail({StatusCode::peer_lost, "lost rank 1", Rank(1)}, true);
  EXPECT_EQ(made.failure().message(), "rank 2 is late");
}

}  // namespace
}  // namespace stretto::group
