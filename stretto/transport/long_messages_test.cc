// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How messages of more than kPieceBytes are received. For sending them see frame_stream_test.cc.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/peer_fixture.h"
#include "tests/support/tracked_request.h"

namespace stretto::transport {
namespace {

const MessageKey kPeerKey{.group = 1};

// A receive and its bytes.
struct LongReceive {
  explicit LongReceive(std::size_t size, const MessageKey& key = kPeerKey) : bytes(size) {
    request.key = key;
    request.incoming = bytes;
  }
  std::vector<std::byte> bytes;
  TrackedRequest request;
};

class LongMessagesTest : public PeerFixture {
 protected:
  void feed_begin(const MessageKey& key, std::size_t size) {
    feed({.kind = FrameKind::data, .key = key, .message_bytes = size});
  }
  void feed_piece(const MessageKey& key, std::size_t left, char fill) {
    const Frame piece{.kind = FrameKind::piece, .key = key, .message_bytes = left};
    feed(piece, piece.payload_bytes(), fill);
  }
  void feed_message(const MessageKey& key, char fill) {
    feed({.kind = FrameKind::message, .key = key, .message_bytes = 10}, 10, fill);
  }
};

TEST_F(LongMessagesTest, LongMessagesComeInPieces) {
  LongReceive first(2 * kPieceBytes + 7);
  LongReceive second(kPieceBytes + 1);
  LongReceive small(10);
  for (LongReceive* receive : {&first, &second, &small}) peer_.recv(receive->request);
  feed_begin(kPeerKey, first.bytes.size());
  feed_begin(kPeerKey, second.bytes.size());
  feed_piece(kPeerKey, 2 * kPieceBytes + 7, 'a');
  feed_message(kPeerKey, 'x');
  feed_piece(kPeerKey, kPieceBytes + 7, 'b');
  progress();
  EXPECT_TRUE(small.request.done()) << "it has gone between two pieces";
  EXPECT_FALSE(first.request.done());
  feed_piece(kPeerKey, 7, 'c');
  progress();
  EXPECT_TRUE(first.request.done() && first.request.status().ok());
  EXPECT_FALSE(second.request.done());
  feed_piece(kPeerKey, kPieceBytes + 1, 'd');
  feed_piece(kPeerKey, 1, 'e');
  progress();
  EXPECT_TRUE(second.request.done() && second.request.status().ok());
  EXPECT_EQ(first.bytes[kPieceBytes - 1], std::byte{'a'});
  EXPECT_EQ(first.bytes[kPieceBytes], std::byte{'b'});
  EXPECT_EQ(first.bytes[2 * kPieceBytes], std::byte{'c'});
  EXPECT_EQ(second.bytes[0], std::byte{'d'});
  EXPECT_EQ(second.bytes[kPieceBytes], std::byte{'e'});
}

TEST_F(LongMessagesTest, ForgetsALongMessageOfWhichPiecesAreMissing) {
  for (const std::size_t of_piece : {std::size_t{0}, std::size_t{1000}, kPieceBytes}) {
    SCOPED_TRACE(of_piece);
    const MessageKey key{.group = 20 + of_piece};
    LongReceive receive(2 * kPieceBytes, key);
    peer_.recv(receive.request);
    feed_begin(key, receive.bytes.size());
    feed_piece(key, receive.bytes.size(), 'a');
    link_.incoming.resize(link_.incoming.size() - kPieceBytes + of_piece);
    progress();
    EXPECT_FALSE(receive.request.done());
    peer_.forget(key.group, Status(StatusCode::aborted, "enough"));
    EXPECT_EQ(receive.request.ended.size(), 1u);
    EXPECT_EQ(receive.request.status().code(), StatusCode::aborted);
    std::ranges::fill(receive.bytes, std::byte{0});
    link_.feed(std::vector<std::byte>(kPieceBytes - of_piece, std::byte{'a'}));
    feed_piece(key, kPieceBytes, 'b');
    feed_message({.group = 2}, 'y');
    LongReceive small(10, {.group = 2});
    peer_.recv(small.request);
    progress();
    EXPECT_EQ(std::ranges::count(receive.bytes, std::byte{0}), 2 * kPieceBytes);
    EXPECT_EQ(small.bytes, std::vector<std::byte>(10, std::byte{'y'}));
  }
  EXPECT_TRUE(peer_.status().ok()) << peer_.status().message();
}

TEST_F(LongMessagesTest, PiecesThatNobodyExpectsInThisSizeAreNoOtherMessages) {
  LongReceive other(kPieceBytes + 2);
  LongReceive good(kPieceBytes + 1);
  peer_.recv(other.request);
  feed_begin(kPeerKey, kPieceBytes + 1);
  progress();
  EXPECT_EQ(other.request.status().code(), StatusCode::mismatch);
  peer_.recv(good.request);
  feed_begin(kPeerKey, kPieceBytes + 1);
  for (const char fill : {'a', 'b'}) {
    feed_piece(kPeerKey, kPieceBytes + 1, fill);
    feed_piece(kPeerKey, 1, fill);
  }
  progress();
  EXPECT_TRUE(good.request.done() && good.request.status().ok());
  EXPECT_EQ(std::ranges::count(good.bytes, std::byte{'b'}), kPieceBytes + 1);
}

TEST_F(LongMessagesTest, TheEndOfThePeerEndsLongMessages) {
  LongReceive receive(2 * kPieceBytes);
  peer_.recv(receive.request);
  feed_begin(kPeerKey, receive.bytes.size());
  feed_piece(kPeerKey, receive.bytes.size(), 'a');
  progress();
  link_.ended = true;
  progress();
  EXPECT_EQ(receive.request.ended.size(), 1u);
  EXPECT_EQ(receive.request.status().code(), StatusCode::peer_lost);
}

TEST_F(LongMessagesTest, PiecesOutOfTurnBreakTheProtocol) {
  LongReceive receive(2 * kPieceBytes);
  peer_.recv(receive.request);
  feed_begin(kPeerKey, receive.bytes.size());
  feed_piece(kPeerKey, kPieceBytes, 'a');
  progress();
  EXPECT_EQ(peer_.status().code(), StatusCode::protocol);
  EXPECT_EQ(receive.request.ended.size(), 1u);
}

TEST_F(LongMessagesTest, LongMessagesThatNobodyReceivesAreRefusedInTheEnd) {
  for (int i = 0; i < 5000; ++i) feed_begin(kPeerKey, kPieceBytes + 1);
  progress();
  EXPECT_EQ(peer_.status().code(), StatusCode::protocol);
}

}  // namespace
}  // namespace stretto::transport
