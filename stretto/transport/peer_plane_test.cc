// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "stretto/transport/peer.h"
#include "tests/support/fake_link.h"

namespace stretto::transport {
namespace {

// Something else moves the messages, and has begun to bring one.
class SlowPlane final : public DataPlane {
 public:
  void send(Request&) override {}
  void recv(Request&) override {}
  bool has_arrived(Rank, const MessageKey&) const override { return false; }
  void cancel(Rank, std::uint64_t, const Status&) override {}
  void lose(Rank, const Status&) override {}
  bool progress(UnexpectedQueue&) override { return false; }
  bool has_output(Rank) const override { return false; }
  std::uint64_t arrivals(Rank) const override { return arrived; }
  bool has_read(Rank, std::uint64_t arrivals) const override { return read >= arrivals; }

  std::uint64_t arrived = 1;
  std::uint64_t read = 0;
};

class PeerOnSlowPlaneTest : public ::testing::Test, public TransportListener {
 protected:
  PeerOnSlowPlaneTest() {
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

  TransportListener* listener_ = this;
  SlowPlane plane_;
  FakeLink* link_ = nullptr;
  std::unique_ptr<Peer> peer_;
  std::vector<Status> lost_;
  std::vector<Status> left_;
  std::vector<Status> aborted_;
  std::vector<std::uint64_t> forgotten_;
};

TEST_F(PeerOnSlowPlaneTest, FarewellsAreHeardWhenWhatWasSentBeforeThemIsHere) {
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
  EXPECT_TRUE(left_.empty());
  plane_.read = 3;
  progress();
  EXPECT_EQ(left_.size(), 1u);
  EXPECT_TRUE(lost_.empty());
}

TEST_F(PeerOnSlowPlaneTest, FarewellsAreHeardWhenNothingCanComeAnyMore) {
  feed_farewell(5);
  progress();
  EXPECT_TRUE(forgotten_.empty());
  link_->ended = true;
  progress();
  EXPECT_EQ(forgotten_, std::vector<std::uint64_t>{5});
  EXPECT_EQ(lost_.size(), 1u);
}

}  // namespace
}  // namespace stretto::transport
