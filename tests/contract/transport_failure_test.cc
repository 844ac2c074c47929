// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What goes wrong, on every transport: ranks that disagree, abandon a group, leave, die or send
// nonsense.

#include <sys/socket.h>

#include <algorithm>
#include <chrono>

#include "tests/contract/transport_participant.h"
#include "tests/support/expect_contains.h"

namespace stretto::transport {
namespace {

using Message = Participant::Message;

constexpr std::uint64_t kGroup = 7;
constexpr std::uint64_t kOtherGroup = 8;
constexpr std::size_t kLarge = 3 * 1024 * 1024 + 7;
// So small that kLarge cannot disappear in the buffers of the system.
constexpr int kSmallBuffer = 4096;

class TransportFailureTest : public TransportTest {
 protected:
  // Messages of both kinds still go both ways.
  static void expect_works(Participant& a, Participant& b, std::uint64_t group) {
    std::vector<std::pair<Message*, Bytes>> received;
    std::uint32_t number = 1000;
    for (const std::size_t size : {std::size_t{10}, std::size_t{100000}}) {
      for (const auto& [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
        const MessageKey key{.group = group, .message = number++};
        from->send(to->endpoint().rank(), key, pattern(number, size));
        received.emplace_back(&to->recv(from->endpoint().rank(), key, size), pattern(number, size));
      }
    }
    const auto done = [&] {
      return std::all_of(received.begin(), received.end(),
                         [](const auto& entry) { return entry.first->request.done(); });
    };
    ASSERT_TRUE(drive({&a.endpoint(), &b.endpoint()}, done));
    for (const auto& [message, bytes] : received) {
      EXPECT_TRUE(message->request.status().ok()) << message->request.status().message();
      EXPECT_TRUE(same_bytes(message->bytes, bytes));
    }
  }
};

// Transports where one rank can die alone.
class TransportKillTest : public TransportFailureTest {};

TEST_P(TransportFailureTest, DifferentCallsAreAMismatch) {
  for (const std::size_t size : {std::size_t{16}, std::size_t{100000}}) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(::testing::Message() << size << " bytes, receive first: " << receive_first);
      World world = make();
      Participant from(world, 0);
      Participant to(world, 1);
      const MessageKey key{.group = kGroup, .sequence = 12};
      Message* received = receive_first ? &to.recv(0, key, size, some_operation(5)) : nullptr;
      if (receive_first) settle({&world[1]});
      from.send(1, key, pattern(1, size), some_operation(4));
      if (!receive_first) {
        ASSERT_TRUE(drive(world, [&] { return !to.unexpected.empty(); }));
        received = &to.recv(0, key, size, some_operation(5));
      }
      ASSERT_TRUE(drive(world, [&] { return received->request.done(); }));
      expect_failure(received->request.status(), StatusCode::mismatch,
                     {"rank 0 called all_reduce(sum f32 [4])", "operation #12",
                      "rank 1 called all_reduce(sum f32 [5])", "First difference: count"});
      EXPECT_EQ(received->request.status().rank(), Rank(0));
      expect_works(from, to, kOtherGroup);
    }
  }
}

TEST_P(TransportFailureTest, DifferentSizesAreAMismatch) {
  using Sizes = std::pair<std::size_t, std::size_t>;
  for (const auto& [sent, wanted] :
       {Sizes{10, 11}, Sizes{0, 1}, Sizes{100000, 100001}, Sizes{100000, 10}, Sizes{10, 100000}}) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(::testing::Message() << sent << " sent, " << wanted << " wanted");
      World world = make();
      Participant from(world, 0);
      Participant to(world, 1);
      const MessageKey key{.group = kGroup, .sequence = 1};
      Message* received = receive_first ? &to.recv(0, key, wanted) : nullptr;
      from.send(1, key, pattern(1, sent));
      if (!receive_first) {
        ASSERT_TRUE(drive(world, [&] { return !to.unexpected.empty(); }));
        received = &to.recv(0, key, wanted);
      }
      ASSERT_TRUE(drive(world, [&] { return received->request.done(); }));
      expect_failure(received->request.status(), StatusCode::mismatch,
                     {"rank 0 sent " + std::to_string(sent) + " bytes, rank 1 expects " +
                          std::to_string(wanted),
                      "as operation #1", "size of a message"});
      EXPECT_EQ(received->request.status().rank(), Rank(0));
      EXPECT_TRUE(same_bytes(received->bytes, Bytes(wanted, std::byte{0xee}))) << "was written to";
      expect_works(from, to, kOtherGroup);
    }
  }
}

TEST_P(TransportFailureTest, ConflictsAreFoundInUnexpectedMessages) {
  for (const std::size_t size : {std::size_t{16}, std::size_t{100000}}) {
    World world = make();
    Participant from(world, 0);
    Participant to(world, 1);
    from.send(1, {.group = kGroup, .sequence = 3}, pattern(1, size), some_operation(4));
    EXPECT_TRUE(world[1].find_conflict(kGroup, 3, some_operation(5)).ok());
    ASSERT_TRUE(drive(world, [&] { return !to.unexpected.empty(); }));
    EXPECT_TRUE(world[1].find_conflict(kGroup, 3, some_operation(4)).ok());
    EXPECT_TRUE(world[1].find_conflict(kGroup, 4, some_operation(5)).ok());
    EXPECT_TRUE(world[1].find_conflict(kOtherGroup, 3, some_operation(5)).ok());
    expect_failure(world[1].find_conflict(kGroup, 3, some_operation(5)), StatusCode::mismatch,
                   {"rank 0 called", "[4]", "rank 1 called", "[5]", "count"});
    world[1].forget(kGroup, world.everybody(), Status(StatusCode::aborted, "enough"));
    EXPECT_TRUE(world[1].find_conflict(kGroup, 3, some_operation(5)).ok());
  }
}

TEST_P(TransportFailureTest, ForgettingEndsWhatWaits) {
  World world = make();
  Participant a(world, 0);
  Participant b(world, 1);
  const Status reason(StatusCode::aborted, "enough");
  Message& small_receive = a.recv(1, {.group = kGroup, .message = 1}, 10);
  Message& large_receive = a.recv(1, {.group = kGroup, .message = 2}, 100000);
  Message& large_send = a.send(1, {.group = kGroup, .message = 3}, pattern(1, 100000));
  Message& other_receive = a.recv(1, {.group = kOtherGroup}, 10);
  // These arrive before anyone asks for them.
  b.send(0, {.group = kGroup, .message = 4}, pattern(1, 10));
  b.send(0, {.group = kGroup, .message = 5}, pattern(1, 100000));
  ASSERT_TRUE(drive(world, [&] { return a.unexpected.size() == 2 && b.unexpected.size() == 1; }));
  world[0].forget(kGroup, world.everybody(), reason);
  for (const Message* message : {&small_receive, &large_receive, &large_send}) {
    EXPECT_TRUE(message->request.done());
    expect_failure(message->request.status(), StatusCode::aborted, {"enough"});
  }
  EXPECT_FALSE(other_receive.request.done());

  // Messages that still arrive for it are dropped, and requests that are posted now end at once.
  b.send(0, {.group = kGroup, .message = 1}, pattern(2, 10));
  b.send(0, {.group = kGroup, .message = 2}, pattern(2, 100000));
  b.recv(0, {.group = kGroup, .message = 3}, 100000);
  Message& too_late = a.recv(1, {.group = kGroup, .message = 4}, 10);
  EXPECT_TRUE(too_late.request.done());
  EXPECT_EQ(too_late.request.status().code(), StatusCode::aborted);
  EXPECT_EQ(a.send(1, {.group = kGroup}, {}).request.status().code(), StatusCode::aborted);
  settle(world);
  EXPECT_EQ(a.unexpected.size(), 2u);
  EXPECT_TRUE(same_bytes(large_receive.bytes, Bytes(100000, std::byte{0xee})));
  b.send(0, {.group = kOtherGroup}, pattern(3, 10));
  ASSERT_TRUE(drive(world, [&] { return other_receive.request.done(); }));
  EXPECT_TRUE(same_bytes(other_receive.bytes, pattern(3, 10)));
  expect_works(a, b, kOtherGroup);
}

TEST_P(TransportFailureTest, ForgettingMidwayKeepsTheStreamWhole) {
  for (const bool sender_forgets : {true, false}) {
    SCOPED_TRACE(sender_forgets);
    World world = make(2, kSmallBuffer);
    Participant from(world, 0);
    Participant to(world, 1);
    const MessageKey key{.group = kGroup};
    Message& received = to.recv(0, key, kLarge);
    Message& sent = from.send(1, key, pattern(1, kLarge));
    from.send(1, {.group = kGroup, .message = 1}, pattern(2, 10));
    settle({&world[1]});
    settle({&world[0]});
    ASSERT_TRUE(drive({&world[1]}, [&] { return received.bytes[0] != std::byte{0xee}; }));
    ASSERT_FALSE(sent.request.done());
    ASSERT_FALSE(received.request.done());
    const Status reason(StatusCode::timeout, "too slow");
    Message& mine = sender_forgets ? sent : received;
    world[sender_forgets ? 0 : 1].forget(kGroup, world.everybody(), reason);
    EXPECT_TRUE(mine.request.done());
    EXPECT_EQ(mine.request.status().code(), StatusCode::timeout);
    std::fill(mine.bytes.begin(), mine.bytes.end(), std::byte{0xaa});
    expect_works(from, to, kOtherGroup);
    if (sender_forgets) {
      // The part that was on its way has arrived as it was when it left; the rest never will.
      EXPECT_FALSE(received.request.done());
      const auto rest = std::ranges::mismatch(received.bytes, pattern(1, kLarge)).in1;
      EXPECT_TRUE(std::all_of(rest, received.bytes.end(),
                              [](std::byte each) { return each == std::byte{0xee}; }));
      world[1].forget(kGroup, world.everybody(), reason);
      EXPECT_TRUE(received.request.done());
    } else {
      EXPECT_TRUE(same_bytes(received.bytes, Bytes(kLarge, std::byte{0xaa})))
          << "written to when forgotten";
    }
  }
}

// The link still holds a part of the message: no more pieces of it go, and the abort follows that
// part.
TEST_P(TransportFailureTest, AnAbortOvertakesTheLongMessageThatItEnds) {
  World world = make(2, kSmallBuffer);
  Participant from(world, 0);
  Participant to(world, 1);
  const Message& received = to.recv(0, {.group = kGroup}, kLarge);
  const Message& sent = from.send(1, {.group = kGroup}, pattern(1, kLarge));
  settle({&world[1]});
  settle({&world[0]});
  ASSERT_TRUE(drive({&world[1]}, [&] { return received.bytes[0] != std::byte{0xee}; }));
  ASSERT_FALSE(sent.request.done());
  const Status reason(StatusCode::aborted, "loss is NaN", Rank(0));
  world[0].announce_abort(kGroup, world.everybody(), reason, GroupStage::in_use);
  world[0].forget(kGroup, world.everybody(), reason);
  ASSERT_TRUE(drive(world, [&] { return !to.aborted.empty() || received.request.done(); }));
  EXPECT_FALSE(received.request.done()) << "the abort has waited for the whole message";
  ASSERT_EQ(to.aborted.size(), 1u);
  EXPECT_EQ(to.aborted[0].group, kGroup);
  EXPECT_EQ(to.aborted[0].reason.message(), "loss is NaN");
  expect_works(from, to, kOtherGroup);
  EXPECT_FALSE(received.request.done());
}

TEST_P(TransportFailureTest, AbortsReachAllWithTheirReason) {
  World world = make(4);
  std::deque<Participant> ranks;
  std::vector<Endpoint*> endpoints;
  for (int r = 0; r < world.size(); ++r) {
    ranks.emplace_back(world, r);
    endpoints.push_back(&world[r]);
  }
  const std::string long_text(5000, 'x');
  world[1].announce_abort(kGroup, world.everybody(),
                          Status(StatusCode::timeout, "rank 2 is late", Rank(2)),
                          GroupStage::in_use);
  world[1].announce_abort(kOtherGroup, world.everybody(), Status(StatusCode::mismatch, long_text),
                          GroupStage::set_up);
  const auto told = [&] {
    return ranks[0].aborted.size() == 2 && ranks[2].aborted.size() == 2 &&
           ranks[3].aborted.size() == 2;
  };
  ASSERT_TRUE(drive(endpoints, told));
  EXPECT_TRUE(ranks[1].aborted.empty());
  for (const int r : {0, 2, 3}) {
    const auto& first = ranks[static_cast<std::size_t>(r)].aborted[0];
    EXPECT_EQ(first.group, kGroup);
    EXPECT_EQ(first.from, Rank(1));
    EXPECT_EQ(first.reason.code(), StatusCode::timeout);
    EXPECT_EQ(first.reason.message(), "rank 2 is late");
    EXPECT_EQ(first.reason.rank(), Rank(2));
    EXPECT_EQ(first.stage, GroupStage::in_use);
    const auto& second = ranks[static_cast<std::size_t>(r)].aborted[1];
    EXPECT_EQ(second.reason.code(), StatusCode::mismatch);
    EXPECT_EQ(second.reason.rank(), std::nullopt);
    EXPECT_EQ(second.reason.message(), std::string(2048, 'x'));
    EXPECT_EQ(second.stage, GroupStage::set_up);
  }
}

TEST_P(TransportFailureTest, WhoLeavesSaysGoodbye) {
  World world = make(3);
  Participant a(world, 0);
  Participant c(world, 2);
  {
    Participant leaving(world, 1);
    // These are sent in good order, and received when the sender is long gone.
    leaving.send(0, {.group = kGroup, .message = 1}, pattern(1, 10));
    leaving.send(0, {.group = kGroup, .message = 2}, pattern(2, kEagerBytes));
    Message& large = leaving.send(0, {.group = kGroup, .message = 3}, pattern(3, 100000));
    world.destroy(1);
    EXPECT_FALSE(large.request.done());
  }
  Message& never = a.recv(1, {.group = kGroup, .message = 9}, 10);
  ASSERT_TRUE(drive({&world[0], &world[2]}, [&] { return !a.left.empty() && !c.left.empty(); }));
  settle({&world[0], &world[2]});
  EXPECT_TRUE(a.lost.empty());
  ASSERT_EQ(a.left.size(), 1u);
  EXPECT_EQ(a.left[0].first, Rank(1));
  expect_failure(a.left[0].second, StatusCode::peer_lost, {"rank 1 has left the job"});
  EXPECT_TRUE(never.request.done());
  expect_failure(never.request.status(), StatusCode::peer_lost, {"rank 1 has left the job"});
  Message& small = a.recv(1, {.group = kGroup, .message = 1}, 10);
  Message& eager = a.recv(1, {.group = kGroup, .message = 2}, kEagerBytes);
  EXPECT_TRUE(small.request.done() && small.bytes == pattern(1, 10));
  EXPECT_TRUE(eager.request.done() && eager.bytes == pattern(2, kEagerBytes));
  Message& gone = a.recv(1, {.group = kGroup, .message = 3}, 100000);
  EXPECT_TRUE(gone.request.done());
  EXPECT_EQ(gone.request.status().code(), StatusCode::peer_lost);
  expect_works(a, c, kGroup);
}

TEST_P(TransportKillTest, WhoIsKilledIsLostAndTheOthersGoOn) {
  World world = make(4, kSmallBuffer);
  Participant a(world, 0);
  Participant c(world, 2);
  for (const int dying : {1, 3}) {
    SCOPED_TRACE(dying);
    Participant victim(world, dying);
    std::vector<Message*> mine;
    // One message in each state: posted, waiting for a receive, half received, half sent.
    mine.push_back(&a.recv(dying, {.group = kGroup, .message = 1}, 10));
    mine.push_back(&a.send(dying, {.group = kGroup, .message = 2}, pattern(2, kLarge)));
    mine.push_back(&a.recv(dying, {.group = kGroup, .message = 3}, kLarge));
    mine.push_back(&a.send(dying, {.group = kGroup, .message = 4}, pattern(4, kLarge)));
    victim.send(0, {.group = kGroup, .message = 3}, pattern(3, kLarge));
    victim.recv(0, {.group = kGroup, .message = 4}, kLarge);
    for (int i = 0; i < 4; ++i) {
      world[dying].progress();
      world[0].progress();
    }
    const std::size_t lost_before = a.lost.size();
    world.kill(dying);
    ASSERT_TRUE(drive({&world[0], &world[2]},
                      [&] { return a.lost.size() > lost_before && c.lost.size() > lost_before; }));
    settle({&world[0], &world[2]});
    EXPECT_EQ(a.lost.size(), lost_before + 1);
    EXPECT_EQ(a.lost.back().first, Rank(dying));
    const std::string name = GetParam().link_name(0, dying);
    const std::string text = "lost rank " + std::to_string(dying) + " (" + name + ")";
    expect_failure(a.lost.back().second, StatusCode::peer_lost, {text});
    EXPECT_EQ(a.lost.back().second.rank(), Rank(dying));
    mine.push_back(&a.recv(dying, {.group = kGroup, .message = 5}, 10));
    mine.push_back(&a.send(dying, {.group = kGroup, .message = 6}, pattern(6, 10)));
    for (const Message* message : mine) {
      EXPECT_TRUE(message->request.done());
      expect_failure(message->request.status(), StatusCode::peer_lost, {text});
    }
    expect_works(a, c, kGroup);
    EXPECT_TRUE(a.left.empty());
  }
}

TEST_P(TransportKillTest, ASleeperLearnsOfADeath) {
  using std::chrono::milliseconds;
  auto shortest = milliseconds::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    World world = make(3);
    Participant a(world, 0);
    TimePoint told;
    std::thread sleeper([&] {
      Endpoint& endpoint = a.endpoint();
      while (a.lost.empty()) {
        endpoint.begin_sleep();
        if (!endpoint.progress()) endpoint.sleep(Deadline());
        endpoint.end_sleep();
        endpoint.progress();
      }
      told = Clock::now();
    });
    std::this_thread::sleep_for(milliseconds(20));
    const TimePoint killed = Clock::now();
    world.kill(2);
    sleeper.join();
    EXPECT_EQ(a.lost[0].first, Rank(2));
    shortest = std::min(shortest, std::chrono::ceil<milliseconds>(told - killed));
  }
  // A sleep ends by itself, but not that soon.
  EXPECT_LT(shortest, milliseconds(40));
}

TEST_P(TransportKillTest, ADeathIsNoticedHoweverMuchHasComeThatNobodyAsksFor) {
  World world = make(4, kSmallBuffer);
  Participant a(world, 0);
  for (const int dying : {1, 3}) {
    Participant victim(world, dying);
    const auto group = static_cast<std::uint64_t>(dying);
    // More than a rank keeps of messages that it has not asked for, and more than the connection
    // holds.
    constexpr std::uint32_t kMessages = kUnexpectedBytesMax / kEagerBytes + 40;
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      victim.send(0, {.group = group, .message = i}, Bytes(kEagerBytes));
      world[dying].progress();
      world[0].progress();
    }
    EXPECT_FALSE(victim.all_done());
    const std::size_t lost_before = a.lost.size();
    world.kill(dying);
    const TimePoint killed = Clock::now();
    ASSERT_TRUE(drive({&world[0]}, [&] { return a.lost.size() > lost_before; }));
    EXPECT_LT(Clock::now() - killed, std::chrono::seconds(1));
    EXPECT_EQ(a.lost.back().first, Rank(dying));
    a.forget(group, Status(StatusCode::aborted, "enough"));
  }
}

TEST_P(TransportKillTest, NonsenseLosesTheOneWhoSendsIt) {
  World world = make(4);
  Participant a(world, 0);
  Participant c(world, 2);
  for (const int bad : {1, 3}) {
    const Bytes nonsense = pattern(99, 1001);
    const int socket = world.sockets[bad][0];
    ASSERT_EQ(::send(socket, nonsense.data(), nonsense.size(), 0), 1001);
    const std::size_t lost_before = a.lost.size();
    ASSERT_TRUE(drive({&world[0]}, [&] { return a.lost.size() > lost_before; }));
    const bool tcp = GetParam().link_name(0, bad).starts_with("tcp");
    EXPECT_EQ(a.lost.back().first, Rank(bad));
    expect_failure(a.lost.back().second, tcp ? StatusCode::protocol : StatusCode::peer_lost,
                   {"lost rank " + std::to_string(bad)});
    expect_works(a, c, kGroup);
  }
  EXPECT_TRUE(c.lost.empty());
}

INSTANTIATE_TEST_SUITE_P(Worlds, TransportFailureTest, ::testing::ValuesIn(world_kinds()),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Worlds, TransportKillTest,
                         ::testing::ValuesIn(world_kinds_where([](const WorldKind& kind) {
                           return kind.can_kill;
                         })),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace stretto::transport
