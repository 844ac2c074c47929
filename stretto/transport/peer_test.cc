// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/peer.h"

#include <gtest/gtest.h>

#include <string>

#include "stretto/transport/fake_link.h"

namespace stretto::transport {
namespace {

constexpr std::size_t kLarge = kEagerBytes + 10;
const MessageKey kKey{.group = 1};

// Rank 0 of three, and what it believes to be rank 1.
class PeerTest : public testing::Test, public RequestOwner, public TransportListener {
 protected:
  PeerTest() {
    auto link = std::make_unique<FakeLink>();
    link_ = link.get();
    peer_ = std::make_unique<Peer>(Peer::Ranks{.self = 0, .peer = 1, .count = 3}, std::move(link),
                                   &listener_);
  }

  void feed(const Frame& frame, std::size_t payload_bytes, char fill = 'x') {
    link_->feed(encode(frame));
    link_->feed(std::vector<std::byte>(payload_bytes, static_cast<std::byte>(fill)));
  }
  void feed_message(const MessageKey& key, std::size_t size, char fill = 'x') {
    feed({.kind = FrameKind::message, .key = key, .message_bytes = size, .operation = {}}, size,
         fill);
  }
  void feed_abort(std::uint32_t code, std::uint32_t culprit, std::string_view text) {
    feed({.kind = FrameKind::abort,
          .key = {.group = 9, .sequence = code, .segment = culprit},
          .message_bytes = text.size(),
          .operation = {}},
         0);
    link_->feed(std::as_bytes(std::span(text)));
  }
  void progress() {
    while (peer_->progress()) continue;
  }
  Request& receive(const MessageKey& key, std::size_t size) {
    bytes_.resize(size);
    request_.key = key;
    request_.incoming = bytes_;
    request_.owner = this;
    peer_->recv(request_);
    return request_;
  }

  void request_done(Request&) override { ++ended_; }
  void peer_lost(Rank, const Status& status) override { lost_.push_back(status); }
  void peer_left(Rank, const Status& status) override { left_.push_back(status); }
  void message_early(Rank, const MessageKey& key, const OperationDescriptor&) override {
    early_.push_back(key);
  }
  void group_aborted(std::uint64_t, Rank, const Status& reason) override {
    aborted_.push_back(reason);
  }

  TransportListener* listener_ = this;
  FakeLink* link_ = nullptr;
  std::unique_ptr<Peer> peer_;
  std::vector<std::byte> bytes_;
  Request request_;
  int ended_ = 0;
  std::vector<Status> lost_;
  std::vector<Status> left_;
  std::vector<MessageKey> early_;
  std::vector<Status> aborted_;
};

TEST_F(PeerTest, ParsesHoweverTheBytesAreCut) {
  for (const std::size_t cut : {1u, 3u, 55u, 56u, 57u, 4096u, 100000u}) {
    link_->read_max_bytes = cut;
    const std::size_t before = early_.size();
    for (std::uint32_t i = 0; i < 5; ++i) feed_message({.group = 1, .message = i}, i * 3000);
    progress();
    EXPECT_EQ(early_.size(), before + 5) << cut;
    for (std::uint32_t i = 0; i < 5; ++i) {
      const Request& request = receive({.group = 1, .message = i}, i * 3000);
      EXPECT_TRUE(request.done && request.status.ok());
      EXPECT_EQ(bytes_, std::vector<std::byte>(i * 3000, std::byte{'x'}));
    }
  }
}

TEST_F(PeerTest, ForgetsAMessageWhoseBytesAreComing) {
  const Frame frame{
      .kind = FrameKind::message, .key = kKey, .message_bytes = 60000, .operation = {}};
  for (const bool posted_before : {true, false}) {
    for (const bool claimed : {true, false}) {
      const std::uint64_t group = 10 + (posted_before ? 2 : 0) + (claimed ? 1 : 0);
      Frame mine = frame;
      mine.key.group = group;
      if (posted_before) receive(mine.key, 60000);
      feed(mine, 20000);
      progress();
      if (!posted_before && claimed) receive(mine.key, 60000);
      peer_->forget(group, Status(StatusCode::aborted, "enough"));
      EXPECT_TRUE(request_.done);
      bytes_ = {};
      bytes_.shrink_to_fit();
      link_->feed(std::vector<std::byte>(40000));
      feed_message({.group = 2}, 10, 'y');
      progress();
      EXPECT_TRUE(receive({.group = 2}, 10).done);
      EXPECT_EQ(bytes_, std::vector<std::byte>(10, std::byte{'y'}));
    }
  }
  EXPECT_EQ(early_, std::vector<MessageKey>(4, MessageKey{.group = 2}));
  EXPECT_EQ(peer_->matcher().early_bytes(), 0u);
}

TEST_F(PeerTest, KeepsNothingForAForgottenGroup) {
  peer_->forget(1, Status(StatusCode::aborted, "enough"));
  // More than a peer may leave here unasked.
  for (int i = 0; i < 1200; ++i) feed_message(kKey, 60000);
  const Frame announcement{
      .kind = FrameKind::announce, .key = kKey, .message_bytes = kLarge, .operation = {}};
  Frame clear = announcement;
  clear.kind = FrameKind::clear;
  for (int i = 0; i < 100'000; ++i) feed(i % 2 == 0 ? announcement : clear, 0);
  feed_message({.group = 2}, 1);
  progress();
  EXPECT_EQ(early_, std::vector<MessageKey>{{.group = 2}});
  EXPECT_TRUE(peer_->status().ok()) << peer_->status().message();
}

TEST_F(PeerTest, HoldsBackWhoSendsWhatNobodyAsksFor) {
  for (std::uint32_t i = 0; i < 1500; ++i) feed_message({.group = 1, .message = i}, kEagerBytes);
  progress();
  EXPECT_LT(early_.size(), 1200u);
  EXPECT_TRUE(link_->readable());
  for (std::uint32_t i = 0; i < 1500; ++i) {
    receive({.group = 1, .message = i}, kEagerBytes);
    progress();
    ASSERT_TRUE(request_.done && request_.status.ok()) << i;
  }
  EXPECT_FALSE(link_->readable());
}

TEST_F(PeerTest, ChecksWhatAnAbortSays) {
  feed_abort(static_cast<std::uint32_t>(StatusCode::timeout), 2, "late");
  feed_abort(0, kNoRank, "no code");
  feed_abort(77, 3, "");
  feed_abort(static_cast<std::uint32_t>(StatusCode::system), 0x80000000u, "no such rank");
  progress();
  ASSERT_EQ(aborted_.size(), 4u);
  EXPECT_EQ(aborted_[0].code(), StatusCode::timeout);
  EXPECT_EQ(aborted_[0].rank(), Rank(2));
  EXPECT_EQ(aborted_[0].message(), "late");
  EXPECT_EQ(aborted_[1].code(), StatusCode::aborted);
  EXPECT_EQ(aborted_[1].rank(), std::nullopt);
  EXPECT_EQ(aborted_[2].code(), StatusCode::aborted);
  EXPECT_EQ(aborted_[2].rank(), std::nullopt) << "of three ranks";
  EXPECT_EQ(aborted_[3].rank(), std::nullopt);
}

TEST_F(PeerTest, NonsenseIsAProtocolErrorToldOnce) {
  receive(kKey, 10);
  link_->feed(std::vector<std::byte>(200, std::byte{0x41}));
  progress();
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].code(), StatusCode::protocol);
  EXPECT_EQ(lost_[0].rank(), Rank(1));
  EXPECT_NE(lost_[0].message().find("lost rank 1 (fake)"), std::string::npos);
  EXPECT_EQ(request_.status.code(), StatusCode::protocol);
  link_->ended = true;
  progress();
  EXPECT_EQ(lost_.size(), 1u);
  EXPECT_EQ(ended_, 1);
}

TEST_F(PeerTest, PositionsThatMakeNoSenseAreAProtocolErrorForWritersToo) {
  link_->write_failure = Status(StatusCode::protocol, "a ring claims to hold too much");
  peer_->send_abort(1, Status(StatusCode::aborted, "enough"));
  progress();
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].code(), StatusCode::protocol);
}

TEST_F(PeerTest, ReadsTheLastWordsOfOneWhoTakesNoMore) {
  link_->write_failure = Status(StatusCode::peer_lost, "broken pipe");
  peer_->send_abort(1, Status(StatusCode::aborted, "enough"));
  feed_message(kKey, 10);
  feed({.kind = FrameKind::goodbye, .key = {}, .operation = {}}, 0);
  link_->ended = true;
  progress();
  EXPECT_EQ(early_.size(), 1u);
  EXPECT_TRUE(lost_.empty());
  ASSERT_EQ(left_.size(), 1u);
  EXPECT_TRUE(receive(kKey, 10).done);
  EXPECT_TRUE(request_.status.ok());
}

TEST_F(PeerTest, GoodbyeIsHeardThoughItsGroupIsForgotten) {
  peer_->forget(0, Status(StatusCode::aborted, "enough"));
  feed({.kind = FrameKind::goodbye, .key = {}, .operation = {}}, 0);
  link_->ended = true;
  progress();
  EXPECT_TRUE(lost_.empty());
  EXPECT_EQ(left_.size(), 1u);
}

TEST_F(PeerTest, DiesInMidMessage) {
  receive(kKey, 60000);
  feed({.kind = FrameKind::message, .key = kKey, .message_bytes = 60000, .operation = {}}, 59999);
  link_->ended = true;
  progress();
  EXPECT_EQ(request_.status.code(), StatusCode::peer_lost);
  EXPECT_EQ(lost_.size(), 1u);
  EXPECT_EQ(ended_, 1);
}

}  // namespace
}  // namespace stretto::transport
