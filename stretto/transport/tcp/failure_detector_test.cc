// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/tcp/failure_detector.h"

#include <gtest/gtest.h>

namespace stretto::transport::tcp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLimit = seconds(10);
constexpr Duration kHeartbeat = milliseconds(500);

// Looks twice a second at a connection whose state a test sets.
class FailureDetectorTest : public ::testing::Test {
 protected:
  // Lets `time` pass with the connection in `state`. Returns how long it took to give it up, if so.
  std::optional<Duration> watch(const ConnectionState& state, Duration time) {
    const TimePoint begin = now_;
    while (now_ - begin < time) {
      now_ += kHeartbeat;
      if (!detector_.due(now_)) continue;
      contact_ = detector_.look(now_, state);
      signs_ += contact_.wants_sign ? 1 : 0;
      if (contact_.lost) return now_ - begin;
    }
    return std::nullopt;
  }
  // Lets time pass in which nobody looks at the connection.
  void pause(Duration time) { now_ += time; }

  FailureDetector detector_{kLimit};
  TimePoint now_ = TimePoint(std::chrono::hours(1));
  Link::Contact contact_;
  int signs_ = 0;
};

TEST_F(FailureDetectorTest, WhatIsInFlightMustBeAcknowledgedWithinTheLimit) {
  EXPECT_FALSE(watch({.acknowledged_bytes = 7}, seconds(5)));
  const auto lost = watch({.acknowledged_bytes = 7, .in_flight = true}, seconds(60));
  ASSERT_TRUE(lost);
  EXPECT_LE(*lost, kLimit);
  // The limit covers an idle second, an outage of 6 s, and 1.25 s until the next retransmission.
  EXPECT_GE(*lost, seconds(7));
  EXPECT_GE(contact_.silence, seconds(8));
}

// The last acknowledgement has come between two looks.
TEST_F(FailureDetectorTest, SilenceBeginsWithTheLastAcknowledgement) {
  watch({.acknowledged_bytes = 7, .in_flight = true}, seconds(1));
  watch({.acknowledged_bytes = 8, .in_flight = true, .since_acknowledgement = milliseconds(400)},
        kHeartbeat);
  EXPECT_EQ(contact_.silence, milliseconds(400));
  watch({.acknowledged_bytes = 9, .in_flight = true, .since_acknowledgement = seconds(3)},
        kHeartbeat);
  EXPECT_EQ(contact_.silence, kHeartbeat) << "no longer than since the last look";
  pause(std::chrono::minutes(10));
  watch({.acknowledged_bytes = 10,
         .in_flight = true,
         .since_acknowledgement = std::chrono::minutes(10)},
        kHeartbeat);
  EXPECT_EQ(contact_.silence, detector_.sign_interval()) << "a program that was stopped";
  EXPECT_FALSE(contact_.silent);
}

TEST_F(FailureDetectorTest, LooksAreMoreOftenTowardsTheLimit) {
  watch({.in_flight = true}, seconds(2));
  EXPECT_FALSE(detector_.due(now_ + kLimit / 50));
  watch({.in_flight = true}, seconds(4));
  EXPECT_TRUE(detector_.due(now_ + kLimit / 50));
}

TEST_F(FailureDetectorTest, AHostThatIsGoneIsNotHeard) {
  EXPECT_TRUE(watch({.in_flight = true, .since_acknowledgement = kLimit}, kLimit));
  EXPECT_FALSE(contact_.heard);
}

TEST_F(FailureDetectorTest, AnyProgressIsASignOfLife) {
  for (std::uint64_t bytes = 0; bytes < 100; ++bytes) {
    EXPECT_FALSE(watch({.acknowledged_bytes = bytes, .in_flight = true}, seconds(7))) << bytes;
  }
}

// If packets are lost one way only, the peer's repetitions look like acknowledgements.
TEST_F(FailureDetectorTest, HearingTheRepetitionsOfThePeerIsNone) {
  std::uint64_t packets = 0;
  while (!contact_.lost && packets < 20) {
    watch({.received_packets = ++packets,
           .in_flight = true,
           .since_acknowledgement = milliseconds(100)},
          seconds(1));
  }
  EXPECT_LT(packets, 12u);
  EXPECT_TRUE(contact_.heard);
}

// If the cable of this host is pulled out, the kernel cannot even send.
TEST_F(FailureDetectorTest, WhatCannotLeaveThisHostCountsAsInFlight) {
  EXPECT_TRUE(watch({.unsent = true, .probe_unanswered = true}, kLimit));
  EXPECT_TRUE(watch({.unsent = true}, kLimit));
}

TEST_F(FailureDetectorTest, AProcessThatIsStoppedIsNotGivenUp) {
  // The peer's socket is full. Its kernel says so when it is probed, at ever longer intervals.
  const ConnectionState full{.acknowledged_bytes = 9,
                             .unsent = true,
                             .window_open = false,
                             .since_acknowledgement = seconds(100)};
  EXPECT_FALSE(watch(full, std::chrono::minutes(30)));
  EXPECT_EQ(signs_, 0);
  // The peer's kernel has dropped data in flight, which is sent again and then answered.
  const ConnectionState dropped{.acknowledged_bytes = 9,
                                .in_flight = true,
                                .unsent = true,
                                .window_open = false,
                                .since_acknowledgement = milliseconds(900),
                                .retransmission_pause = milliseconds(800)};
  EXPECT_FALSE(watch(dropped, std::chrono::minutes(30)));
}

TEST_F(FailureDetectorTest, AHostThatVanishesWhileItsProcessIsStoppedIsGivenUp) {
  ConnectionState state{.unsent = true, .window_open = false};
  EXPECT_FALSE(watch(state, std::chrono::minutes(1)));
  state.probe_unanswered = true;
  const auto lost = watch(state, seconds(60));
  ASSERT_TRUE(lost);
  EXPECT_LE(*lost, kLimit);
  FailureDetector other(kLimit);
  detector_ = other;
  state = {.in_flight = true,
           .window_open = false,
           .since_acknowledgement = seconds(3),
           .retransmission_pause = seconds(1)};
  EXPECT_TRUE(watch(state, kLimit + kHeartbeat));
}

TEST_F(FailureDetectorTest, AnIdleConnectionAsksForASignAndIsNeverGivenUp) {
  EXPECT_FALSE(watch({}, std::chrono::minutes(10)));
  EXPECT_GT(signs_, 500);
  // If each sign is acknowledged, the next is needed after about a second.
  signs_ = 0;
  for (std::uint64_t bytes = 64; bytes < 64 * 100; bytes += 64) {
    EXPECT_FALSE(watch({.acknowledged_bytes = bytes}, milliseconds(1500)));
  }
  EXPECT_GT(signs_, 90);
  EXPECT_LT(signs_, 210);
}

TEST_F(FailureDetectorTest, WhatWaitsForTheNetworkIsToldWithItsRateOfLate) {
  ConnectionState state{.waiting_bytes = 1'000'000, .in_flight = true};
  EXPECT_FALSE(watch(state, milliseconds(1000)));
  EXPECT_EQ(contact_.waiting_bytes, 0u) << "anything is under way for a moment";
  for (int look = 0; look < 20; ++look) {
    state.acknowledged_bytes += 700;
    state.received_bytes += 200;
    EXPECT_FALSE(watch(state, kHeartbeat));
  }
  EXPECT_EQ(contact_.waiting_bytes, 1'000'000u);
  EXPECT_DOUBLE_EQ(contact_.sent_rate, 1400);
  EXPECT_DOUBLE_EQ(contact_.received_rate, 400);
  EXPECT_FALSE(watch(state, seconds(5)));
  EXPECT_EQ(contact_.sent_rate, 0);
  EXPECT_EQ(contact_.waiting_bytes, 1'000'000u);
  EXPECT_FALSE(watch({.acknowledged_bytes = state.acknowledged_bytes + 1'000'000}, kHeartbeat));
  EXPECT_EQ(contact_.waiting_bytes, 0u);
}

TEST_F(FailureDetectorTest, WhatWaitsForThePeerToMakeRoomDoesNotWaitForTheNetwork) {
  ConnectionState state{.waiting_bytes = 9000, .unsent = true, .window_open = false};
  EXPECT_FALSE(watch(state, seconds(5)));
  EXPECT_EQ(contact_.waiting_bytes, 0u);
  // The peer reads now and then, and has a little room whenever somebody looks.
  state.window_open = true;
  for (int look = 0; look < 20; ++look) {
    state.acknowledged_bytes += 4096;
    state.without_room += milliseconds(400);
    EXPECT_FALSE(watch(state, kHeartbeat));
    EXPECT_EQ(contact_.waiting_bytes, 0u);
  }
  // An outage begins when the peer's room has just been used up.
  state.in_flight = true;
  for (int look = 0; look < 4; ++look) {
    state.without_room += kHeartbeat;
    EXPECT_FALSE(watch(state, kHeartbeat));
  }
  EXPECT_EQ(contact_.waiting_bytes, 9000u);
}

TEST_F(FailureDetectorTest, TimeInWhichThisProcessWasStoppedDoesNotCount) {
  EXPECT_FALSE(watch({.in_flight = true}, seconds(4)));
  pause(std::chrono::minutes(10));
  EXPECT_FALSE(watch({.in_flight = true}, seconds(1)));
  EXPECT_TRUE(watch({.in_flight = true}, kLimit));
}

TEST_F(FailureDetectorTest, ALimitOfZeroGivesNothingUp) {
  detector_ = FailureDetector(Duration::zero());
  EXPECT_FALSE(watch({.in_flight = true}, std::chrono::hours(1)));
  EXPECT_FALSE(detector_.due(now_ + std::chrono::hours(1)));
}

}  // namespace
}  // namespace stretto::transport::tcp
