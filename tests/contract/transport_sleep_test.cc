// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Sleeping and being woken, on every transport.

#include <atomic>
#include <chrono>

#include "tests/contract/transport_participant.h"

namespace stretto::transport {
namespace {

using std::chrono::milliseconds;

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

INSTANTIATE_TEST_SUITE_P(Worlds, TransportSleepTest, testing::ValuesIn(world_kinds()), world_name);

}  // namespace
}  // namespace stretto::transport
