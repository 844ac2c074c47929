// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "stretto/transport/frame.h"
#include "tests/contract/transport_participant.h"

namespace stretto::transport {
namespace {

// How groups and ranks with full links end, on every transport, and what ranks say about each
// other.

using std::chrono::milliseconds;
using Message = Participant::Message;

// So small that little fits into a connection.
constexpr int kSmallBuffer = 4096;
const Status kEnough(StatusCode::aborted, "enough");

class TransportLeavingTest : public TransportTest {};

TEST_P(TransportLeavingTest, ForgottenGroupsLeaveNothing) {
  World world = make(3);
  std::deque<Participant> ranks;
  for (int r = 0; r < 3; ++r) ranks.emplace_back(world, r);
  const std::vector<Rank> members{0, 1};
  constexpr std::uint64_t kGroups = 1000;
  for (std::uint64_t group = 0; group < kGroups; ++group) {
    // Ranks forget in crossed orders, alone, at once, and with messages of the group under way.
    ranks[0].send(1, {.group = group}, pattern(group, 20));
    if (group % 3 == 0) ranks[0].recv(1, {.group = kGroups - 1 - group}, 10);
    world[0].forget(group, members, kEnough);
    world[1].forget(kGroups - 1 - group, members, kEnough);
    if (group % 7 == 0) world[0].progress();
    if (group % 11 == 0) world[1].progress();
  }
  EXPECT_GT(world[0].half_forgotten_groups() + world[1].half_forgotten_groups(), 0u);
  ASSERT_TRUE(drive(world, [&] {
    return world[0].half_forgotten_groups() == 0 && world[1].half_forgotten_groups() == 0;
  }));
  EXPECT_EQ(world[2].half_forgotten_groups(), 0u) << "is no member";
  EXPECT_TRUE(ranks[0].all_done() && ranks[1].all_done());
}

TEST_P(TransportLeavingTest, AnAbortIsHeardByTheMembersThatHaveNotForgottenTheGroup) {
  World world = make(4);
  std::deque<Participant> ranks;
  for (int r = 0; r < 4; ++r) ranks.emplace_back(world, r);
  const std::vector<Rank> members{0, 1, 3};
  // Rank 1 has long forgotten the group, rank 3 has not.
  world[1].forget(5, members, kEnough);
  settle(world);
  world[0].announce_abort(5, members, Status(StatusCode::timeout, "too late"), GroupStage::in_use);
  world[0].forget(5, members, kEnough);
  ASSERT_TRUE(drive(world, [&] { return !ranks[3].aborted.empty(); }));
  settle(world);
  EXPECT_TRUE(ranks[1].aborted.empty());
  EXPECT_TRUE(ranks[2].aborted.empty()) << "is no member";
  EXPECT_EQ(ranks[3].aborted.size(), 1u);
}

TEST_P(TransportLeavingTest, MembersOfAGroupThatHasBeenAbandonedCanStillAgree) {
  World world = make(2);
  Participant a(world, 0);
  Participant b(world, 1);
  const std::vector<Rank> members{0, 1};
  const MessageKey key{.group = 5, .sequence = 3, .segment = 2, .message = 1};
  world[0].abandon(5, members, kEnough);
  world[1].abandon(5, members, kEnough);
  EXPECT_EQ(a.send(1, {.group = 5}, pattern(1, 20)).request.status().message(), "enough");
  for (const std::size_t size : {std::size_t{0}, std::size_t{40000}}) {
    b.agreements.clear();
    world[0].send_agreement(1, key, pattern(2, size));
    ASSERT_TRUE(drive(world, [&] { return !b.agreements.empty(); }));
    EXPECT_EQ(b.agreements[0], std::pair(key, pattern(2, size)));
  }
  EXPECT_TRUE(b.groups_left.empty());
  world[1].forget(5, members, kEnough);
  ASSERT_TRUE(drive(world, [&] { return a.groups_left.size() == 1; }));
  b.agreements.clear();
  world[0].send_agreement(1, key, pattern(2, 40));
  world[0].forget(5, members, kEnough);
  ASSERT_TRUE(drive(world, [&] {
    return world[0].half_forgotten_groups() == 0 && world[1].half_forgotten_groups() == 0;
  }));
  EXPECT_TRUE(b.agreements.empty()) << "it has forgotten the group";
  // A rank that says what no correct rank says is lost.
  b.agreement_status = Status(StatusCode::protocol, "nonsense");
  world[0].send_agreement(1, {.group = 6}, pattern(2, 40));
  ASSERT_TRUE(drive(world, [&] { return !b.lost.empty(); }));
  EXPECT_EQ(b.lost[0].second.code(), StatusCode::protocol);
  // The rank is told that it has been given up, unless it is a thread of this process.
  if (!GetParam().can_kill) return;
  ASSERT_TRUE(drive(world, [&] { return !a.lost.empty(); }));
  EXPECT_EQ(a.lost[0].second.code(), StatusCode::peer_lost);
}

TEST_P(TransportLeavingTest, RanksTellWhereTheyAre) {
  World world = make(3);
  std::deque<Participant> ranks;
  for (int r = 0; r < 3; ++r) ranks.emplace_back(world, r);
  ranks[1].state = "is in barrier() #3 since 2.5 s";
  ranks[2].state = "has ended #2";
  world[0].inquire(1, 7, 3, {});
  world[0].inquire(2, 7, 3, {});
  ASSERT_TRUE(drive(world, [&] { return ranks[0].reports.size() == 2; }));
  std::sort(ranks[0].reports.begin(), ranks[0].reports.end());
  EXPECT_EQ(ranks[0].reports[0], std::pair(Rank(1), ranks[1].state));
  EXPECT_EQ(ranks[0].reports[1], std::pair(Rank(2), ranks[2].state));
  world[0].inquire(1, 7, 4, {});
  ASSERT_TRUE(drive({&world[0], &world[1]}, [&] { return ranks[0].reports.size() == 3; }));
}

TEST_P(TransportLeavingTest, ItIsKnownWhoIsGoneAndHow) {
  World world = make(4);
  Participant a(world, 0);
  for (int r = 0; r < 4; ++r) EXPECT_TRUE(world[0].peer_status(r).status.ok());
  world.destroy(1);
  if (GetParam().can_kill) world.kill(3);
  ASSERT_TRUE(drive({&world[0]},
                    [&] { return !a.left.empty() && (!a.lost.empty() || !GetParam().can_kill); }));
  EXPECT_EQ(world[0].peer_status(1).status.message(), "rank 1 has left the job");
  EXPECT_TRUE(world[0].peer_status(1).left);
  EXPECT_TRUE(world[0].peer_status(2).status.ok());
  if (!GetParam().can_kill) return;
  EXPECT_EQ(world[0].peer_status(3).status.code(), StatusCode::peer_lost);
  EXPECT_FALSE(world[0].peer_status(3).left);
}

TEST_P(TransportLeavingTest, MessagesHaveArrivedWhenAReceiveWouldTakeThem) {
  for (const std::size_t size : {std::size_t{10}, std::size_t{100000}}) {
    World world = make();
    Participant a(world, 0);
    Participant b(world, 1);
    const MessageKey key{.group = 7, .sequence = kPointToPoint, .segment = 3};
    EXPECT_FALSE(world[1].has_arrived(0, key));
    a.send(1, key, pattern(1, size));
    ASSERT_TRUE(drive(world, [&] { return !b.unexpected.empty(); }));
    EXPECT_TRUE(world[1].has_arrived(0, key));
    EXPECT_FALSE(world[1].has_arrived(0, {.group = 7, .sequence = kPointToPoint, .segment = 4}));
    EXPECT_FALSE(world[1].has_arrived(1, key)) << "it has none from itself";
    Message& received = b.recv(0, key, size);
    EXPECT_FALSE(world[1].has_arrived(0, key));
    ASSERT_TRUE(drive(world, [&] { return received.request.done(); }));
  }
}

// Sends messages until ten are left over that the link does not take: the kernel moves bytes on by
// itself, and what is too much for the link now may fit a millisecond later. Returns how many
// messages it has sent.
std::size_t fill_link(Participant& from, int peer) {
  constexpr int kLeftOver = 10;
  int left_over = 0;
  std::uint32_t count = 0;
  for (; count < 400 && left_over < kLeftOver; ++count) {
    Message& message = from.send(peer, {.group = 7, .message = count}, pattern(count, 60000));
    if (!message.request.done()) ++left_over;
  }
  return count;
}

TEST_P(TransportLeavingTest, WhoLeavesWithAFullLinkIsHeardToTheEnd) {
  World world = make(2, kSmallBuffer);
  Participant a(world, 0);
  std::size_t sent = 0;
  {
    Participant leaving(world, 1);
    fill_link(leaving, 0);
    EXPECT_FALSE(leaving.all_done()) << "the link is not full";
    std::thread end([&] { world.destroy(1); });
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_TRUE(drive({&world[0]}, [&] { return !a.left.empty() || !a.lost.empty(); }));
    end.join();
    sent = leaving.done_count();
  }
  EXPECT_TRUE(a.lost.empty()) << a.lost[0].second.message();
  EXPECT_EQ(a.left.size(), 1u);
  EXPECT_EQ(a.unexpected.size(), sent);
}

TEST_P(TransportLeavingTest, TwoThatLeaveWithFullLinksDoNotWaitForEachOther) {
  World world = make(2, kSmallBuffer);
  Participant a(world, 0);
  Participant b(world, 1);
  fill_link(a, 1);
  fill_link(b, 0);
  const TimePoint begin = Clock::now();
  std::thread end([&] { world.destroy(1); });
  world.destroy(0);
  end.join();
  EXPECT_LT(Clock::now() - begin, milliseconds(900));
}

TEST(TransportLeaving, WhoTakesNothingIsNotWaitedForLong) {
  World world = world_kinds().front().make({});
  Participant a(world, 0);
  {
    Participant leaving(world, 1);
    fill_link(leaving, 0);
    const TimePoint begin = Clock::now();
    world.destroy(1);
    EXPECT_GT(Clock::now() - begin, milliseconds(900));
    EXPECT_LT(Clock::now() - begin, milliseconds(2500));
  }
}

TEST_P(TransportLeavingTest, MessagesBeyondTheLimitArriveInTheirOrder) {
  World world = make();
  Participant from(world, 0);
  Participant to(world, 1);
  constexpr std::uint32_t kMessages = kUnexpectedBytesMax / kEagerBytes + 200;
  const MessageKey key{.group = 7};
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    from.send(1, key, Bytes(kEagerBytes, static_cast<std::byte>(i * 7)));
    world[0].progress();
    world[1].progress();
  }
  EXPECT_FALSE(from.all_done());
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    Message& received = to.recv(0, key, kEagerBytes);
    ASSERT_TRUE(drive(world, [&] { return received.request.done(); })) << i;
    ASSERT_TRUE(received.request.status().ok());
    ASSERT_TRUE(same_bytes(received.bytes, Bytes(kEagerBytes, static_cast<std::byte>(i * 7)))) << i;
  }
  ASSERT_TRUE(drive(world, [&] { return from.all_done(); }));
}

INSTANTIATE_TEST_SUITE_P(Worlds, TransportLeavingTest, ::testing::ValuesIn(world_kinds()),
                         ::testing::PrintToStringParamName());

// Sleeping and being woken, on every transport.

class TransportSleepTest : public TransportTest {};

// Sleeps are bounded by the transport; one that lasts this long was not ended by an event.
constexpr milliseconds kUndisturbed(90);
// A machine under load may look like one lost wake-up; a hole in the protocol loses one in every
// few hundred rounds.
constexpr int kOversleptMax = 1;

// One sleep, as the contract describes it. Returns whether it ended by itself although there was
// something to do: a lost wake-up.
bool sleep_once(Endpoint& endpoint) {
  endpoint.begin_sleep();
  bool overslept = false;
  if (!endpoint.progress()) {
    const TimePoint begin = Clock::now();
    endpoint.sleep(Deadline());
    if (Clock::now() - begin >= kUndisturbed) overslept = endpoint.progress();
  }
  endpoint.end_sleep();
  return overslept;
}

// Each side sleeps after one idle turn.
TEST_P(TransportSleepTest, NoWakeUpIsLost) {
  const std::uint32_t rounds = GetParam().must_be_asked ? 300 : 20000;
  World world = make();
  const std::vector<Rank> everybody = world.everybody();
  std::atomic<int> overslept{0};
  on_each_rank(world, [&](Participant& self) {
    Endpoint& endpoint = self.endpoint();
    const int peer = endpoint.rank() == Rank(0) ? 1 : 0;
    std::uint32_t out = 0;
    std::uint32_t in = 0;
    TrackedRequest send;
    send.peer = peer;
    send.outgoing = std::as_bytes(std::span(&out, 1));
    TrackedRequest recv;
    recv.peer = peer;
    recv.incoming = std::as_writable_bytes(std::span(&in, 1));
    const auto finish = [&](const TrackedRequest& request) {
      while (!request.done() && overslept <= kOversleptMax) {
        if (!endpoint.progress()) overslept += sleep_once(endpoint) ? 1 : 0;
      }
    };
    for (std::uint32_t round = 0; round < rounds && overslept <= kOversleptMax; ++round) {
      send.reset();
      recv.reset();
      send.key = recv.key = {.group = 1, .message = round};
      out = round;
      if (peer == 1) endpoint.send(send);
      endpoint.recv(recv);
      finish(recv);
      EXPECT_TRUE(in == round || !recv.done());
      if (peer == 0) endpoint.send(send);
      finish(send);
    }
    endpoint.forget(1, everybody, Status(StatusCode::aborted, "test is over"));
  });
  EXPECT_LE(overslept, kOversleptMax);
}

// A sender that fills the link goes to sleep; the reader, who never sleeps, has to wake it.
TEST_P(TransportSleepTest, RoomWakesASenderThatWaitsForIt) {
  constexpr std::size_t kBytes = 16 * 1024 * 1024;
  World world = make(2, 4096);
  std::atomic<int> overslept{0};
  on_each_rank(world, [&](Participant& self) {
    Endpoint& endpoint = self.endpoint();
    if (endpoint.rank() == Rank(0)) {
      self.send(1, {.group = 1}, Bytes(kBytes));
      while (!self.all_done() && overslept <= kOversleptMax) {
        if (!endpoint.progress()) overslept += sleep_once(endpoint) ? 1 : 0;
      }
    } else {
      self.recv(0, {.group = 1}, kBytes);
      EXPECT_TRUE(drive({&endpoint}, [&] { return self.all_done() || overslept > kOversleptMax; }));
    }
  });
  EXPECT_LE(overslept, kOversleptMax);
}

TEST_P(TransportSleepTest, AnyThreadCanWakeAllSleepers) {
  auto shortest = milliseconds::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    World world = make();
    Endpoint& endpoint = world[0];
    endpoint.begin_sleep();
    endpoint.begin_sleep();
    while (endpoint.progress()) continue;
    std::vector<std::thread> sleepers;
    TimePoint woken[2];
    for (TimePoint& when : woken) {
      sleepers.emplace_back([&] {
        endpoint.sleep(Deadline());
        when = Clock::now();
      });
    }
    std::this_thread::sleep_for(milliseconds(10));
    const TimePoint called = Clock::now();
    endpoint.wake();
    for (std::thread& sleeper : sleepers) sleeper.join();
    endpoint.end_sleep();
    endpoint.end_sleep();
    const Duration longer = std::max(woken[0], woken[1]) - called;
    shortest = std::min(shortest, std::chrono::ceil<milliseconds>(longer));
  }
  EXPECT_LT(shortest, milliseconds(50));
}

TEST_P(TransportSleepTest, WakingEarlyCounts) {
  World world = make();
  Endpoint& endpoint = world[0];
  auto shortest = milliseconds::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    endpoint.begin_sleep();
    endpoint.wake();
    while (endpoint.progress()) continue;
    const TimePoint begin = Clock::now();
    endpoint.sleep(Deadline());
    shortest = std::min(shortest, std::chrono::ceil<milliseconds>(Clock::now() - begin));
    endpoint.end_sleep();
  }
  EXPECT_LT(shortest, milliseconds(50));
}

TEST_P(TransportSleepTest, SleepKeepsItsDeadline) {
  World world = make();
  Endpoint& endpoint = world[0];
  auto shortest = Duration::max();
  for (int attempt = 0; attempt < 3; ++attempt) {
    endpoint.begin_sleep();
    while (endpoint.progress()) continue;
    const TimePoint begin = Clock::now();
    endpoint.sleep(Deadline::after(milliseconds(10)));
    shortest = std::min(shortest, Clock::now() - begin);
    endpoint.end_sleep();
    if (GetParam().must_be_asked) continue;
    EXPECT_GE(shortest, milliseconds(10)) << "woken by nothing";
  }
  EXPECT_LT(shortest, milliseconds(50));
}

INSTANTIATE_TEST_SUITE_P(Worlds, TransportSleepTest,
                         ::testing::ValuesIn(world_kinds_where([](const WorldKind& kind) {
                           return !kind.is_mixed;
                         })),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace stretto::transport
