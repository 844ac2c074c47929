// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// When and by which words a peer is lost whose link has ended.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/transport/peer.h"
#include "tests/support/fake_link.h"
#include "tests/support/tracked_request.h"

namespace stretto::transport {
namespace {

// Rank 0 of two, and what it believes to be rank 1.
class PeerEndTest : public ::testing::Test, public TransportListener {
 protected:
  void progress() {
    while (peer_.progress()) continue;
  }

  void peer_lost(Rank, const Status& status) override { lost_.push_back(status); }
  void peer_left(Rank, const Status& status) override { left_.push_back(status); }
  std::optional<std::string> find_obituary(Rank peer) override {
    EXPECT_EQ(peer, Rank(1));
    ++asked_for_obituary_;
    return obituary_;
  }
  void unexpected_message(Rank, const MessageKey&, const OperationDescriptor&) override {}
  void group_aborted(std::uint64_t, Rank, const Status&, GroupStage) override {}

  FakeLink& link_ = *new FakeLink;  // The peer's.
  TransportListener* listener_ = this;
  Peer peer_{{.self = 0, .peer = 1, .count = 2}, std::unique_ptr<Link>(&link_), &listener_};
  std::optional<std::string> obituary_;
  int asked_for_obituary_ = 0;
  std::vector<Status> lost_;
  std::vector<Status> left_;
};

TEST_F(PeerEndTest, IsLostByWhatTheLauncherTells) {
  TrackedRequest request;
  request.peer = 1;
  peer_.recv(request);
  obituary_ = "";  // Somebody looks after it.
  link_.ended = true;
  progress();
  EXPECT_TRUE(lost_.empty());
  EXPECT_TRUE(peer_.awaits_obituary());
  EXPECT_FALSE(request.done());
  obituary_ = "killed by SIGKILL\n";
  EXPECT_TRUE(peer_.progress());
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].message(), "lost rank 1 (fake): killed by SIGKILL ");
  EXPECT_EQ(lost_[0].code(), StatusCode::peer_lost);
  EXPECT_EQ(lost_[0].rank(), Rank(1));
  EXPECT_EQ(request.status().message(), lost_[0].message());
  EXPECT_FALSE(peer_.awaits_obituary());
  progress();
  EXPECT_EQ(lost_.size(), 1u);
}

TEST_F(PeerEndTest, IsLostSoonThoughTheLauncherTellsNothing) {
  obituary_ = "";
  link_.ended = true;
  const TimePoint begin = Clock::now();
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (lost_.empty() && !deadline.passed()) peer_.progress();
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].message(), "lost rank 1 (fake): the end");
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(100));
}

TEST_F(PeerEndTest, NobodyWaitsWhereNoLauncherTells) {
  link_.ended = true;
  progress();
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].message(), "lost rank 1 (fake): the end");
  EXPECT_EQ(asked_for_obituary_, 1);
}

TEST_F(PeerEndTest, NobodyWaitsForTheEndOfOneWhoHasLeft) {
  obituary_ = "";
  link_.feed(encode({.kind = FrameKind::goodbye}));
  link_.ended = true;
  progress();
  EXPECT_EQ(left_.size(), 1u);
  EXPECT_EQ(asked_for_obituary_, 0);
}

TEST_F(PeerEndTest, NobodyWaitsForTheEndOfOneWhileLeaving) {
  obituary_ = "";
  link_.ended = true;
  progress();
  EXPECT_TRUE(peer_.awaits_obituary());
  listener_ = nullptr;  // As at the end of an endpoint.
  progress();
  EXPECT_EQ(peer_.status().message(), "lost rank 1 (fake): the end");
}

}  // namespace
}  // namespace stretto::transport
