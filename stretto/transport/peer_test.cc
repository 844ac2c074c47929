// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/peer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <string>

#include "tests/support/expect_contains.h"
#include "tests/support/peer_fixture.h"
#include "tests/support/tracked_request.h"

namespace stretto::transport {
namespace {

constexpr std::size_t kAnnounced = kEagerBytes + 10;
const MessageKey kPeerKey{.group = 1};

class PeerTest : public PeerFixture {
 protected:
  void feed_message(const MessageKey& key, std::size_t size, char fill = 'x') {
    feed({.kind = FrameKind::message, .key = key, .message_bytes = size}, size, fill);
  }
  void feed_abort(std::uint32_t code, std::uint32_t culprit, std::string_view text) {
    feed({.kind = FrameKind::abort,
          .key = {.group = 9, .sequence = code, .segment = culprit},
          .message_bytes = text.size()},
         0);
    link_.feed(std::as_bytes(std::span(text)));
  }
  void feed_credit(std::uint64_t bytes) {
    feed({.kind = FrameKind::credit, .message_bytes = bytes}, 0);
  }
  void feed_inquiry(std::uint64_t group, std::uint32_t sequence,
                    const OperationDescriptor& operation = {}) {
    feed({.kind = FrameKind::inquiry,
          .key = {.group = group, .sequence = sequence},
          .operation = operation},
         0);
  }
  void feed_report(std::uint64_t group, std::uint32_t sequence, std::string_view text) {
    feed({.kind = FrameKind::report,
          .key = {.group = group, .sequence = sequence},
          .message_bytes = text.size()},
         0);
    link_.feed(std::as_bytes(std::span(text)));
  }
  // Returns the whole frames that have been written to the link.
  std::vector<Frame> sent_frames() const {
    std::vector<Frame> frames;
    for (std::size_t at = 0; at < link_.written.size();) {
      FrameHeader header;
      std::copy_n(link_.written.begin() + static_cast<long>(at), header.size(), header.begin());
      frames.push_back(decode(header).or_throw());
      at += header.size() + frames.back().payload_bytes();
    }
    return frames;
  }
  TrackedRequest& receive(const MessageKey& key, std::size_t size) {
    bytes_.resize(size);
    request_.key = key;
    request_.incoming = bytes_;
    request_.reset();
    peer_.recv(request_);
    return request_;
  }

  std::vector<std::byte> bytes_;
  TrackedRequest request_;
};

TEST_F(PeerTest, ParsesHoweverTheBytesAreCut) {
  for (const std::size_t cut : {1u, 3u, 55u, 56u, 57u, 4096u, 100000u}) {
    link_.read_max_bytes = cut;
    const std::size_t before = heard_.unexpected.size();
    for (std::uint32_t i = 0; i < 5; ++i) feed_message({.group = 1, .message = i}, i * 3000);
    progress();
    EXPECT_EQ(heard_.unexpected.size(), before + 5) << cut;
    for (std::uint32_t i = 0; i < 5; ++i) {
      const TrackedRequest& request = receive({.group = 1, .message = i}, i * 3000);
      EXPECT_TRUE(request.done() && request.status().ok());
      EXPECT_EQ(bytes_, std::vector<std::byte>(i * 3000, std::byte{'x'}));
    }
  }
}

TEST_F(PeerTest, ForgetsAMessageWhoseBytesAreComing) {
  const Frame frame{.kind = FrameKind::message, .key = kPeerKey, .message_bytes = 60000};
  for (const bool posted_before : {true, false}) {
    for (const bool claimed : {true, false}) {
      const std::uint64_t group = 10 + (posted_before ? 2 : 0) + (claimed ? 1 : 0);
      Frame mine = frame;
      mine.key.group = group;
      if (posted_before) receive(mine.key, 60000);
      feed(mine, 20000);
      progress();
      if (!posted_before && claimed) receive(mine.key, 60000);
      peer_.forget(group, Status(StatusCode::aborted, "enough"));
      EXPECT_TRUE(request_.done());
      bytes_ = {};
      bytes_.shrink_to_fit();
      link_.feed(std::vector<std::byte>(40000));
      feed_message({.group = 2}, 10, 'y');
      progress();
      EXPECT_TRUE(receive({.group = 2}, 10).done());
      EXPECT_EQ(bytes_, std::vector<std::byte>(10, std::byte{'y'}));
    }
  }
  EXPECT_EQ(heard_.unexpected, std::vector(4, std::pair(Rank(1), MessageKey{.group = 2})));
  EXPECT_EQ(static_cast<const FrameMessages&>(peer_.plane()).matcher().unexpected_bytes(), 0u);
}

TEST_F(PeerTest, KeepsNothingForAForgottenGroup) {
  peer_.forget(1, Status(StatusCode::aborted, "enough"));
  // These are more bytes than a peer may leave here unasked.
  for (int i = 0; i < 1200; ++i) {
    feed_message(kPeerKey, 60000);
    progress();
  }
  const Frame announcement{
      .kind = FrameKind::announce, .key = kPeerKey, .message_bytes = kAnnounced};
  Frame clear = announcement;
  clear.kind = FrameKind::clear;
  for (int i = 0; i < 100'000; ++i) feed(i % 2 == 0 ? announcement : clear, 0);
  feed_message({.group = 2}, 1);
  progress();
  EXPECT_EQ(heard_.unexpected, std::vector{std::pair(Rank(1), MessageKey{.group = 2})});
  EXPECT_TRUE(peer_.status().ok()) << peer_.status().message();
}

TEST_F(PeerTest, WhoSendsMoreThanTheLimitThatNobodyAsksForBreaksTheProtocol) {
  const std::size_t most = kUnexpectedBytesMax / unexpected_cost_bytes(kEagerBytes);
  for (std::uint32_t i = 0; i < most; ++i) feed_message({.group = 1, .message = i}, kEagerBytes);
  progress();
  EXPECT_TRUE(peer_.status().ok());
  feed_message({.group = 1, .message = 9999}, kEagerBytes);
  progress();
  EXPECT_EQ(peer_.status().code(), StatusCode::protocol);
}

TEST_F(PeerTest, GivesCreditForWhatIsTaken) {
  std::uint64_t credit = 0;
  for (std::uint32_t i = 0; i < 3000; ++i) {
    if (i % 2 == 0) receive({.group = 1, .message = i}, kEagerBytes);
    feed_message({.group = 1, .message = i}, kEagerBytes);
    progress();
    if (i % 2 == 1) receive({.group = 1, .message = i}, kEagerBytes);
    progress();
    ASSERT_TRUE(request_.done() && request_.status().ok()) << i;
  }
  const std::vector<Frame> frames = sent_frames();
  for (const Frame& frame : frames) {
    ASSERT_EQ(frame.kind, FrameKind::credit);
    EXPECT_GT(frame.message_bytes, credit);
    credit = frame.message_bytes;
  }
  EXPECT_GT(credit, 2 * kUnexpectedBytesMax);
  EXPECT_LE(credit, 3000 * unexpected_cost_bytes(kEagerBytes));
  EXPECT_LT(frames.size(), 40u);
}

TEST_F(PeerTest, KeepsToTheLimitAsASender) {
  const std::vector<std::byte> bytes(kEagerBytes);
  std::list<TrackedRequest> requests;
  const auto send = [&] {
    TrackedRequest& request = requests.emplace_back();
    request.key = {.group = 1, .message = static_cast<std::uint32_t>(requests.size())};
    request.outgoing = bytes;
    peer_.send(request);
    progress();
    return request.done();
  };
  const std::size_t most = kUnexpectedBytesMax / unexpected_cost_bytes(kEagerBytes);
  for (std::size_t i = 0; i < most; ++i) ASSERT_TRUE(send()) << i;
  link_.written.clear();
  EXPECT_FALSE(send());
  EXPECT_EQ(sent_frames().at(0).kind, FrameKind::announce);
  Frame clear = sent_frames().at(0);
  clear.kind = FrameKind::clear;
  link_.written.clear();
  feed(clear, 0);
  progress();
  EXPECT_EQ(sent_frames().at(0).kind, FrameKind::data);
  EXPECT_TRUE(requests.back().done());
  feed_credit(unexpected_cost_bytes(kEagerBytes));
  progress();
  EXPECT_TRUE(send());
  EXPECT_FALSE(send());
}

TEST_F(PeerTest, WhatWasNeverSentNeedsNoCredit) {
  const std::vector<std::byte> bytes(kEagerBytes);
  link_.room_bytes = 0;
  for (std::uint64_t group = 1; group < 5; ++group) {
    std::list<TrackedRequest> requests;
    for (std::uint32_t i = 0; i < 500; ++i) {
      TrackedRequest& request = requests.emplace_back();
      request.key = {.group = group, .message = i};
      request.outgoing = bytes;
      peer_.send(request);
    }
    peer_.forget(group, Status(StatusCode::aborted, "enough"));
  }
  link_.room_bytes = static_cast<std::size_t>(-1);
  TrackedRequest request;
  request.key = {.group = 9};
  request.outgoing = bytes;
  peer_.send(request);
  progress();
  EXPECT_EQ(sent_frames().back().kind, FrameKind::message);
}

TEST_F(PeerTest, CreditForWhatWasNotSentBreaksTheProtocol) {
  TrackedRequest request;
  request.key = kPeerKey;
  peer_.send(request);
  progress();
  feed_credit(kUnexpectedOverheadBytes);
  progress();
  EXPECT_TRUE(peer_.status().ok());
  feed_credit(kUnexpectedOverheadBytes - 1);
  progress();
  EXPECT_EQ(peer_.status().code(), StatusCode::protocol) << "credit is never taken back";
}

TEST_F(PeerTest, MoreCreditThanSentBreaksTheProtocol) {
  feed_credit(1);
  progress();
  EXPECT_EQ(peer_.status().code(), StatusCode::protocol);
}

TEST_F(PeerTest, AForgottenGroupIsKeptUntilBothHaveForgottenIt) {
  const Status reason(StatusCode::aborted, "enough");
  peer_.forget(1, reason);
  EXPECT_EQ(peer_.half_forgotten(), 1u);
  progress();
  EXPECT_EQ(sent_frames().back().kind, FrameKind::farewell);
  feed_farewell(1);
  feed_farewell(2);
  progress();
  EXPECT_EQ(peer_.half_forgotten(), 1u);
  peer_.forget(2, reason);
  EXPECT_EQ(peer_.half_forgotten(), 0u);
  // Forgetting a group is no failure of the peer.
  EXPECT_TRUE(peer_.status().ok());
}

TEST_F(PeerTest, FarewellsWithoutEndAreRefused) {
  for (std::uint64_t group = 0; group < 100'000; ++group) feed_farewell(group);
  progress();
  EXPECT_EQ(peer_.status().code(), StatusCode::protocol);
  EXPECT_EQ(peer_.half_forgotten(), 0u) << "nothing is kept of a peer that is lost";
}

// The program's reason for an abort may concern more than the group.
TEST_F(PeerTest, AbortsOfGroupsThatHaveFailedAreHeard) {
  peer_.abandon(9, Status(StatusCode::timeout, "late"));
  feed_abort(static_cast<std::uint32_t>(StatusCode::aborted), 2, "enough");
  progress();
  ASSERT_EQ(heard_.aborted.size(), 1u);
  EXPECT_EQ(heard_.aborted[0].reason.message(), "enough");
}

TEST_F(PeerTest, AbortsOfForgottenGroupsAreNotHeard) {
  peer_.forget(9, Status(StatusCode::aborted, "enough"));
  feed_abort(static_cast<std::uint32_t>(StatusCode::timeout), 2, "late");
  progress();
  EXPECT_TRUE(heard_.aborted.empty());
  feed_message({.group = 2}, 1);
  progress();
  EXPECT_EQ(heard_.unexpected.size(), 1u) << "its text was taken for the next frame";
}

TEST_F(PeerTest, NorIfTheGroupIsForgottenWhileTheAbortComes) {
  link_.read_max_bytes = kFrameHeaderBytes + 2;
  feed_abort(static_cast<std::uint32_t>(StatusCode::timeout), 2, "late");
  link_.incoming.resize(link_.incoming.size() - 2);
  progress();
  peer_.forget(9, Status(StatusCode::aborted, "enough"));
  link_.feed(std::as_bytes(std::span("te", 2)));
  progress();
  EXPECT_TRUE(heard_.aborted.empty());
}

TEST_F(PeerTest, AnswersInquiries) {
  heard_.state = "is in barrier() #3";
  const OperationDescriptor operation{.collective = Collective::all_gather, .count = 3};
  feed_inquiry(5, 17, operation);
  progress();
  EXPECT_EQ(heard_.asked, (std::vector<RecordingListener::Inquiry>{{5, 17, operation}}));
  const Frame report = sent_frames().at(0);
  EXPECT_EQ(report.kind, FrameKind::report);
  EXPECT_EQ(report.key.group, 5u);
  EXPECT_EQ(report.key.sequence, 17u);
  EXPECT_EQ(report.message_bytes, heard_.state.size());
  link_.written.clear();
  heard_.state = std::string(100'000, 'x');
  feed_inquiry(5, 18);
  progress();
  EXPECT_EQ(sent_frames().at(0).message_bytes, kReportTextBytes);
}

TEST_F(PeerTest, DoesNotPileUpAnswersThatNobodyReads) {
  heard_.state = "is in barrier() #3";
  link_.room_bytes = 0;
  for (std::uint32_t i = 0; i < 10'000; ++i) feed_inquiry(1, i);
  progress();
  link_.room_bytes = static_cast<std::size_t>(-1);
  progress();
  const std::size_t answers = sent_frames().size();
  EXPECT_GE(answers, 10u);
  EXPECT_LE(answers, 100u);
  feed_inquiry(1, 1);
  progress();
  EXPECT_EQ(sent_frames().size(), answers + 1) << "and answers again afterwards";
}

TEST_F(PeerTest, HearsTheReportsItHasAskedForOnce) {
  feed_report(1, 2, "unasked");
  progress();
  peer_.inquire(1, 2, {});
  peer_.inquire(1, 2, {});
  peer_.inquire(1, 3, {});
  progress();
  EXPECT_EQ(sent_frames().size(), 2u);
  EXPECT_TRUE(heard_.reports.empty());
  feed_report(1, 2, "\x1b[31mred\n\xff");
  feed_report(1, 2, "again");
  progress();
  EXPECT_EQ(heard_.reports, (std::vector<std::pair<Rank, std::string>>{{1, "?[31mred ?"}}));
  peer_.inquire(1, 2, {});
  feed_report(1, 2, "");
  progress();
  EXPECT_EQ(heard_.reports.size(), 2u);
  // A report about a forgotten group is dropped.
  peer_.forget(1, Status(StatusCode::aborted, "enough"));
  feed_report(1, 3, "late");
  progress();
  EXPECT_EQ(heard_.reports.size(), 2u);
}

TEST_F(PeerTest, WhoLeavesSendsWhatItHasAndHearsNothing) {
  link_.room_bytes = 0;
  TrackedRequest request;
  request.key = kPeerKey;
  peer_.send(request);
  TrackedRequest& receiving = receive({.group = 2}, 10);
  peer_.leave();
  feed_message({.group = 2}, 10);
  feed_message({.group = 3}, 10);
  progress();
  link_.room_bytes = static_cast<std::size_t>(-1);
  progress();
  EXPECT_FALSE(receiving.done());
  EXPECT_TRUE(heard_.unexpected.empty());
  const std::vector<Frame> frames = sent_frames();
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].kind, FrameKind::message);
  EXPECT_EQ(frames[1].kind, FrameKind::goodbye);
  EXPECT_FALSE(peer_.has_output());
}

TEST_F(PeerTest, ChecksWhatAnAbortSays) {
  feed_abort(static_cast<std::uint32_t>(StatusCode::timeout), 2, "late");
  feed_abort(0, kNoRank, "no code");
  feed_abort(77, 3, "");
  feed_abort(static_cast<std::uint32_t>(StatusCode::system), 0x80000000u, "no such rank");
  progress();
  ASSERT_EQ(heard_.aborted.size(), 4u);
  EXPECT_EQ(heard_.aborted[0].reason.code(), StatusCode::timeout);
  EXPECT_EQ(heard_.aborted[0].reason.rank(), Rank(2));
  EXPECT_EQ(heard_.aborted[0].reason.message(), "late");
  EXPECT_EQ(heard_.aborted[1].reason.code(), StatusCode::aborted);
  EXPECT_EQ(heard_.aborted[1].reason.rank(), std::nullopt);
  EXPECT_EQ(heard_.aborted[2].reason.code(), StatusCode::aborted);
  EXPECT_EQ(heard_.aborted[2].reason.rank(), std::nullopt) << "of three ranks";
  EXPECT_EQ(heard_.aborted[3].reason.rank(), std::nullopt);
}

TEST_F(PeerTest, NonsenseIsAProtocolErrorToldOnce) {
  receive(kPeerKey, 10);
  link_.feed(std::vector<std::byte>(200, std::byte{0x41}));
  progress();
  ASSERT_EQ(heard_.lost.size(), 1u);
  EXPECT_EQ(heard_.lost[0].second.rank(), Rank(1));
  expect_failure(heard_.lost[0].second, StatusCode::protocol, "lost rank 1 (fake)");
  EXPECT_TRUE(link_.disconnected) << "the peer would wait";
  EXPECT_EQ(request_.status().code(), StatusCode::protocol);
  link_.ended = true;
  progress();
  EXPECT_EQ(heard_.lost.size(), 1u);
  EXPECT_EQ(request_.ended.size(), 1u);
}

TEST_F(PeerTest, PositionsThatMakeNoSenseAreAProtocolErrorForWritersToo) {
  link_.write_failure = Status(StatusCode::protocol, "a ring claims to hold too much");
  peer_.send_abort(1, Status(StatusCode::aborted, "enough"), GroupStage::in_use);
  progress();
  ASSERT_EQ(heard_.lost.size(), 1u);
  EXPECT_EQ(heard_.lost[0].second.code(), StatusCode::protocol);
}

TEST_F(PeerTest, ReadsTheLastWordsOfOneWhoTakesNoMore) {
  link_.write_failure = Status(StatusCode::peer_lost, "broken pipe");
  peer_.send_abort(1, Status(StatusCode::aborted, "enough"), GroupStage::in_use);
  feed_message(kPeerKey, 10);
  feed({.kind = FrameKind::goodbye}, 0);
  link_.ended = true;
  progress();
  EXPECT_EQ(heard_.unexpected.size(), 1u);
  EXPECT_TRUE(heard_.lost.empty());
  ASSERT_EQ(heard_.left.size(), 1u);
  EXPECT_TRUE(receive(kPeerKey, 10).done());
  EXPECT_TRUE(request_.status().ok());
}

TEST_F(PeerTest, GoodbyeIsHeardThoughItsGroupIsForgotten) {
  peer_.forget(0, Status(StatusCode::aborted, "enough"));
  feed({.kind = FrameKind::goodbye}, 0);
  link_.ended = true;
  progress();
  EXPECT_TRUE(heard_.lost.empty());
  EXPECT_EQ(heard_.left.size(), 1u);
}

TEST_F(PeerTest, DiesInMidMessage) {
  receive(kPeerKey, 60000);
  feed({.kind = FrameKind::message, .key = kPeerKey, .message_bytes = 60000}, 59999);
  link_.ended = true;
  progress();
  EXPECT_EQ(request_.status().code(), StatusCode::peer_lost);
  EXPECT_EQ(heard_.lost.size(), 1u);
  EXPECT_EQ(request_.ended.size(), 1u);
}

}  // namespace
}  // namespace stretto::transport
