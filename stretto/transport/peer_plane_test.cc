// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/peer_fixture.h"
#include "tests/support/tracked_request.h"

namespace stretto::transport {
namespace {

// These tests show when a peer is lost whose link has ended, and with which message.
class PeerEndTest : public PeerFixture {};

TEST_F(PeerEndTest, IsLostByWhatTheLauncherTells) {
  TrackedRequest request;
  request.peer = 1;
  peer_.recv(request);
  heard_.obituary = "";  // The launcher has told nothing yet.
  link_.ended = true;
  progress();
  EXPECT_TRUE(heard_.lost.empty());
  EXPECT_TRUE(peer_.awaits_obituary());
  EXPECT_FALSE(request.done());
  heard_.obituary = "killed by SIGKILL\n";
  EXPECT_TRUE(peer_.progress());
  ASSERT_EQ(heard_.lost.size(), 1u);
  EXPECT_EQ(heard_.lost[0].second.message(), "lost rank 1 (fake): killed by SIGKILL ");
  EXPECT_EQ(heard_.lost[0].second.code(), StatusCode::peer_lost);
  EXPECT_EQ(heard_.lost[0].second.rank(), Rank(1));
  EXPECT_EQ(request.status().message(), heard_.lost[0].second.message());
  EXPECT_FALSE(peer_.awaits_obituary());
  progress();
  EXPECT_EQ(heard_.lost.size(), 1u);
}

TEST_F(PeerEndTest, IsLostSoonThoughTheLauncherTellsNothing) {
  heard_.obituary = "";
  link_.ended = true;
  const TimePoint begin = Clock::now();
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (heard_.lost.empty() && !deadline.passed()) peer_.progress();
  ASSERT_EQ(heard_.lost.size(), 1u);
  EXPECT_EQ(heard_.lost[0].second.message(), "lost rank 1 (fake): the end");
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(100));
}

TEST_F(PeerEndTest, NobodyWaitsWhereNoLauncherTells) {
  link_.ended = true;
  progress();
  ASSERT_EQ(heard_.lost.size(), 1u);
  EXPECT_EQ(heard_.lost[0].second.message(), "lost rank 1 (fake): the end");
  EXPECT_EQ(heard_.obituaries_asked, std::vector<Rank>{1});
}

TEST_F(PeerEndTest, NobodyWaitsForTheEndOfOneWhoHasLeft) {
  heard_.obituary = "";
  link_.feed(encode({.kind = FrameKind::goodbye}));
  link_.ended = true;
  progress();
  EXPECT_EQ(heard_.left.size(), 1u);
  EXPECT_TRUE(heard_.obituaries_asked.empty());
}

TEST_F(PeerEndTest, NobodyWaitsForTheEndOfOneWhileLeaving) {
  heard_.obituary = "";
  link_.ended = true;
  progress();
  EXPECT_TRUE(peer_.awaits_obituary());
  listener_ = nullptr;  // An endpoint that ends has no listener.
  progress();
  EXPECT_EQ(peer_.status().message(), "lost rank 1 (fake): the end");
}

// A data plane moves the messages.
class PeerOnPlaneTest : public PeerFixture {
 protected:
  PeerOnPlaneTest() : PeerFixture(std::make_unique<HeldPlane>()) {
    plane_->arrived = 1;  // A message has begun to come.
  }
};

TEST_F(PeerOnPlaneTest, FarewellsAreHeardWhenWhatWasSentBeforeThemIsHere) {
  feed_farewell(5);
  feed_farewell(6);
  progress();
  plane_->arrived = 3;  // Two more messages begin to come.
  feed({.kind = FrameKind::abort,
        .key = {.group = 9, .sequence = static_cast<std::uint32_t>(StatusCode::timeout)}});
  progress();
  EXPECT_TRUE(heard_.groups_left.empty());
  EXPECT_EQ(heard_.aborted.size(), 1u) << "bad news does not wait";
  peer_.forget(6, Status(StatusCode::aborted, "enough"));
  feed({.kind = FrameKind::goodbye});
  link_.ended = true;
  progress();
  EXPECT_TRUE(heard_.left.empty());
  plane_->read = 1;
  EXPECT_TRUE(peer_.progress());
  EXPECT_EQ(heard_.groups_left, std::vector<std::uint64_t>{5}) << "6 has been forgotten here";
  EXPECT_EQ(plane_->closed, (std::vector<std::uint64_t>{5, 6}));
  EXPECT_TRUE(heard_.left.empty());
  plane_->read = 3;
  progress();
  EXPECT_EQ(heard_.left.size(), 1u);
  EXPECT_TRUE(heard_.lost.empty());
}

TEST_F(PeerOnPlaneTest, FarewellsAreHeardWhenNothingCanComeAnyMore) {
  feed_farewell(5);
  progress();
  EXPECT_TRUE(heard_.groups_left.empty());
  link_.ended = true;
  progress();
  EXPECT_EQ(heard_.groups_left, std::vector<std::uint64_t>{5});
  EXPECT_EQ(heard_.lost.size(), 1u);
}

TEST_F(PeerOnPlaneTest, AgreementsOvertakeNoMessages) {
  const std::vector<std::byte> said(3, std::byte{7});
  feed({.kind = FrameKind::agreement, .key = {.group = 5}, .message_bytes = said.size()});
  link_.feed(said);
  feed_farewell(5);
  progress();
  EXPECT_TRUE(heard_.agreements.empty());
  plane_->read = 1;
  progress();
  ASSERT_EQ(heard_.agreements.size(), 1u);
  EXPECT_EQ(heard_.agreements[0].second, said);
  EXPECT_EQ(heard_.groups_left, std::vector<std::uint64_t>{5});

  plane_->output = true;
  peer_.send_agreement({.group = 6}, said);
  peer_.flush();
  EXPECT_TRUE(link_.written.empty());
  plane_->output = false;
  progress();
  EXPECT_EQ(link_.written.size(), encode({.kind = FrameKind::agreement}).size() + said.size());
}

TEST_F(PeerOnPlaneTest, APeerThatAgreesWithoutEndIsGivenUp) {
  const std::vector<std::byte> said(kAgreementBytes);
  for (std::uint64_t group = 0; group < 17; ++group) {
    feed({.kind = FrameKind::agreement, .key = {.group = group}, .message_bytes = said.size()});
    link_.feed(said);
  }
  progress();
  EXPECT_EQ(peer_.status().code(), StatusCode::protocol) << peer_.status().message();
}

TEST_F(PeerOnPlaneTest, TheEndOfItsProcessDoesNotCutAGoodbyeShort) {
  feed({.kind = FrameKind::goodbye});
  progress();
  peer_.process_ended(4711);
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(150));
  while (!deadline.passed()) peer_.progress();
  EXPECT_TRUE(peer_.status().ok());
  plane_->read = 1;
  link_.ended = true;
  progress();
  EXPECT_EQ(heard_.left.size(), 1u);
}

TEST_F(PeerOnPlaneTest, FarewellsWaitTenSecondsForWhatNeverComes) {
  TimePoint now = Clock::now();
  peer_.check_contact(now);
  feed_farewell(5);
  progress();
  peer_.check_contact(now += std::chrono::hours(1));  // As if this process had been stopped.
  for (int second = 2; second < 10; ++second) peer_.check_contact(now += std::chrono::seconds(1));
  progress();
  EXPECT_TRUE(heard_.groups_left.empty());
  peer_.check_contact(now += std::chrono::seconds(1));
  progress();
  EXPECT_EQ(heard_.groups_left, std::vector<std::uint64_t>{5});
  EXPECT_TRUE(plane_->closed.empty()) << "it may come later";
  EXPECT_TRUE(peer_.status().ok());
}

}  // namespace
}  // namespace stretto::transport
