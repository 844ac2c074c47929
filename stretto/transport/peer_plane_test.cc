// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "stretto/transport/peer.h"
#include "tests/support/fake_link.h"
#include "tests/support/held_plane.h"

namespace stretto::transport {
namespace {

// Something else moves the messages.
class PeerOnPlaneTest : public ::testing::Test, public TransportListener {
 protected:
  PeerOnPlaneTest() {
    plane_.arrived = 1;  // A message has begun to come.
    auto link = std::make_unique<FakeLink>();
    link_ = link.get();
    peer_ = std::make_unique<Peer>(Peer::Ranks{.self = 0, .peer = 1, .count = 3}, std::move(link),
                                   &listener_, &plane_);
  }

  void feed(const Frame& frame) { link_->feed(encode(frame)); }
  void feed_farewell(std::uint64_t group) {
    feed({.kind = FrameKind::farewell, .key = {.group = group}});
  }
  void progress() {
    while (peer_->progress()) continue;
  }

  void peer_lost(Rank, const Status& status) override { lost_.push_back(status); }
  void peer_left(Rank, const Status& status) override { left_.push_back(status); }
  void unexpected_message(Rank, const MessageKey&, const OperationDescriptor&) override {}
  void group_aborted(std::uint64_t, Rank, const Status& reason, GroupStage) override {
    aborted_.push_back(reason);
  }
  void group_left(std::uint64_t group, Rank, Farewell) override { forgotten_.push_back(group); }
  Status agreement_arrived(Rank, const MessageKey&, ConstByteSpan payload) override {
    agreed_.assign(payload.begin(), payload.end());
    return {};
  }

  TransportListener* listener_ = this;
  HeldPlane plane_;
  FakeLink* link_ = nullptr;
  std::unique_ptr<Peer> peer_;
  std::vector<Status> lost_;
  std::vector<Status> left_;
  std::vector<Status> aborted_;
  std::vector<std::uint64_t> forgotten_;
  std::vector<std::byte> agreed_;
};

TEST_F(PeerOnPlaneTest, FarewellsAreHeardWhenWhatWasSentBeforeThemIsHere) {
  feed_farewell(5);
  feed_farewell(6);
  progress();
  plane_.arrived = 3;  // After that.
  feed({.kind = FrameKind::abort,
        .key = {.group = 9, .sequence = static_cast<std::uint32_t>(StatusCode::timeout)}});
  progress();
  EXPECT_TRUE(forgotten_.empty());
  EXPECT_EQ(aborted_.size(), 1u) << "bad news does not wait";
  peer_->forget(6, Status(StatusCode::aborted, "enough"));
  feed({.kind = FrameKind::goodbye});
  link_->ended = true;
  progress();
  EXPECT_TRUE(left_.empty());
  plane_.read = 1;
  EXPECT_TRUE(peer_->progress());
  EXPECT_EQ(forgotten_, std::vector<std::uint64_t>{5}) << "6 has been forgotten here";
  EXPECT_EQ(plane_.closed, (std::vector<std::uint64_t>{5, 6}));
  EXPECT_TRUE(left_.empty());
  plane_.read = 3;
  progress();
  EXPECT_EQ(left_.size(), 1u);
  EXPECT_TRUE(lost_.empty());
}

TEST_F(PeerOnPlaneTest, FarewellsAreHeardWhenNothingCanComeAnyMore) {
  feed_farewell(5);
  progress();
  EXPECT_TRUE(forgotten_.empty());
  link_->ended = true;
  progress();
  EXPECT_EQ(forgotten_, std::vector<std::uint64_t>{5});
  EXPECT_EQ(lost_.size(), 1u);
}

TEST_F(PeerOnPlaneTest, AgreementsOvertakeNoMessages) {
  const std::vector<std::byte> said(3, std::byte{7});
  feed({.kind = FrameKind::agreement, .key = {.group = 5}, .message_bytes = said.size()});
  link_->feed(said);
  feed_farewell(5);
  progress();
  EXPECT_TRUE(agreed_.empty());
  plane_.read = 1;
  progress();
  EXPECT_EQ(agreed_, said);
  EXPECT_EQ(forgotten_, std::vector<std::uint64_t>{5});

  plane_.output = true;
  peer_->send_agreement({.group = 6}, said);
  peer_->flush();
  EXPECT_TRUE(link_->written.empty());
  plane_.output = false;
  progress();
  EXPECT_EQ(link_->written.size(), encode({.kind = FrameKind::agreement}).size() + said.size());
}

TEST_F(PeerOnPlaneTest, APeerThatAgreesWithoutEndIsGivenUp) {
  const std::vector<std::byte> said(kAgreementBytes);
  for (std::uint64_t group = 0; group < 17; ++group) {
    feed({.kind = FrameKind::agreement, .key = {.group = group}, .message_bytes = said.size()});
    link_->feed(said);
  }
  progress();
  EXPECT_EQ(peer_->status().code(), StatusCode::protocol) << peer_->status().message();
}

TEST_F(PeerOnPlaneTest, TheEndOfItsProcessDoesNotCutAGoodbyeShort) {
  feed({.kind = FrameKind::goodbye});
  progress();
  peer_->process_ended(4711);
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(150));
  while (!deadline.passed()) peer_->progress();
  EXPECT_TRUE(peer_->status().ok());
  plane_.read = 1;
  link_->ended = true;
  progress();
  EXPECT_EQ(left_.size(), 1u);
}

TEST_F(PeerOnPlaneTest, FarewellsWaitTenSecondsForWhatNeverComes) {
  TimePoint now = Clock::now();
  peer_->check_contact(now);
  feed_farewell(5);
  progress();
  peer_->check_contact(now += std::chrono::hours(1));  // This process stood still.
  for (int second = 2; second < 10; ++second) peer_->check_contact(now += std::chrono::seconds(1));
  progress();
  EXPECT_TRUE(forgotten_.empty());
  peer_->check_contact(now += std::chrono::seconds(1));
  progress();
  EXPECT_EQ(forgotten_, std::vector<std::uint64_t>{5});
  EXPECT_TRUE(plane_.closed.empty()) << "it may come later";
  EXPECT_TRUE(peer_->status().ok());
}

}  // namespace
}  // namespace stretto::transport
