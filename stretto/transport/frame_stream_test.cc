// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/frame_stream.h"

#include <gtest/gtest.h>

#include "tests/support/fake_link.h"
#include "tests/support/tracked_request.h"

namespace stretto::transport {
namespace {

struct Send {
  Send(std::uint64_t group, std::size_t size, char fill)
      : bytes(size, static_cast<std::byte>(fill)) {
    request.key.group = group;
    request.outgoing = bytes;
  }
  Frame frame() const {
    return {.kind = bytes.size() > kEagerBytes ? FrameKind::data : FrameKind::message,
            .key = request.key,
            .message_bytes = bytes.size(),
            .operation = request.operation};
  }
  void push(OutputQueue& queue) { queue.push(frame(), request); }

  std::vector<std::byte> bytes;
  TrackedRequest request;
};

std::vector<std::byte> operator+(std::vector<std::byte> a, const std::vector<std::byte>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<std::byte> wire(const Frame& frame, ConstByteSpan payload = {}) {
  const FrameHeader header = encode(frame);
  std::vector<std::byte> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

std::vector<std::byte> wire(const Send& send) {
  const Frame frame = send.frame();
  return wire(frame, std::span(send.bytes).first(frame.payload_bytes()));
}

// Returns the pieces of a long message, which follow wire(send): numbers `from` to `to` - 1.
std::vector<std::byte> pieces(const Send& send, std::size_t from = 0, std::size_t to = 1000) {
  std::vector<std::byte> bytes;
  for (std::size_t at = from * kPieceBytes; at < send.bytes.size() && at < to * kPieceBytes;
       at += kPieceBytes) {
    const Frame frame{
        .kind = FrameKind::piece, .key = send.request.key, .message_bytes = send.bytes.size() - at};
    bytes = bytes + wire(frame, std::span(send.bytes).subspan(at, frame.payload_bytes()));
  }
  return bytes;
}

void flush_all(OutputQueue& queue, FakeLink& link) {
  link.room_bytes = static_cast<std::size_t>(-1);
  while (!queue.empty()) ASSERT_TRUE(queue.flush(link).or_throw());
}

TEST(OutputQueueTest, WritesFramesInOrderHoweverLittleTheLinkTakes) {
  Send a(1, 100, 'a');
  Send b(1, 0, 'b');
  Send c(2, 57, 'c');
  for (const std::size_t room : {1u, 7u, 56u, 57u, 100u, 1000u}) {
    OutputQueue queue;
    FakeLink link;
    CompletionQueue ended;
    for (Send* send : {&a, &b, &c}) {
      send->request.completions = &ended;
      send->request.cookie = static_cast<std::uint64_t>(send->bytes.size());
      send->push(queue);
    }
    while (!queue.empty()) {
      link.room_bytes = room;
      ASSERT_TRUE(queue.flush(link).or_throw());
    }
    EXPECT_EQ(link.written, wire(a) + wire(b) + wire(c)) << room;
    for (const Send* send : {&a, &b, &c}) {
      ASSERT_FALSE(ended.empty());
      EXPECT_TRUE(ended.front().status.ok());
      EXPECT_EQ(ended.front().cookie, send->request.cookie);
      ended.pop();
    }
    EXPECT_FALSE(queue.flush(link).or_throw());
  }
}

TEST(OutputQueueTest, ARequestIsDoneWhenItsLastByteIsInTheLink) {
  Send a(1, 100, 'a');
  OutputQueue queue;
  FakeLink link;
  a.push(queue);
  link.room_bytes = kFrameHeaderBytes + 99;
  EXPECT_TRUE(queue.flush(link).or_throw());
  EXPECT_FALSE(a.request.done());
  EXPECT_FALSE(queue.flush(link).or_throw());
  link.room_bytes = 1;
  EXPECT_TRUE(queue.flush(link).or_throw());
  EXPECT_TRUE(a.request.done());
  EXPECT_TRUE(queue.empty());
}

TEST(OutputQueueTest, LeavesOffAfterAWhile) {
  OutputQueue queue;
  FakeLink link;
  for (int i = 0; i < 300; ++i) {
    queue.push({.kind = FrameKind::goodbye});
  }
  EXPECT_TRUE(queue.flush(link).or_throw());
  EXPECT_LT(link.written.size(), 300 * kFrameHeaderBytes);
  EXPECT_TRUE(queue.flush(link).or_throw());
  EXPECT_EQ(link.written.size(), 300 * kFrameHeaderBytes);
}

TEST(OutputQueueTest, CopiesThePayloadOfFramesWithoutARequest) {
  OutputQueue queue;
  FakeLink link;
  const Frame frame{.kind = FrameKind::abort, .message_bytes = 5};
  for (int i = 0; i < 100; ++i) {
    std::string text = "text" + std::to_string(i % 10);
    queue.push(frame, std::as_bytes(std::span(text)));
  }
  EXPECT_TRUE(queue.flush(link).or_throw());
  ASSERT_EQ(link.written.size(), 100 * (kFrameHeaderBytes + 5));
  EXPECT_EQ(static_cast<char>(link.written.back()), '9');
}

TEST(OutputQueueTest, ForgettingDropsWhatHasNotBegunAndCompletesWhatHas) {
  for (const std::size_t sent : {std::size_t{0}, std::size_t{20}, kFrameHeaderBytes,
                                 kFrameHeaderBytes + 60, kFrameHeaderBytes + 100}) {
    SCOPED_TRACE(sent);
    Send a(1, 100, 'a');
    Send b(1, 100, 'b');
    Send c(2, 10, 'c');
    const auto expected = (sent == 0 ? std::vector<std::byte>() : wire(a)) + wire(c);
    OutputQueue queue;
    FakeLink link;
    for (Send* send : {&a, &b, &c}) send->push(queue);
    link.room_bytes = sent;
    ASSERT_TRUE(queue.flush(link).ok());
    queue.forget(1, Status(StatusCode::aborted, "enough"));
    EXPECT_EQ(a.request.status().code(),
              sent == kFrameHeaderBytes + 100 ? StatusCode::ok : StatusCode::aborted);
    EXPECT_EQ(b.request.status().code(), StatusCode::aborted);
    EXPECT_FALSE(c.request.done());
    // The queue must not read these bytes any more.
    std::fill(a.bytes.begin(), a.bytes.end(), std::byte{0});
    link.room_bytes = 1000;
    ASSERT_TRUE(queue.flush(link).ok());
    EXPECT_EQ(link.written, expected);
    EXPECT_TRUE(c.request.status().ok() && c.request.done());
    EXPECT_TRUE(queue.empty());
  }
}

TEST(OutputQueueTest, ForgettingLeavesWhatTheLinkHolds) {
  Send a(1, 100, 'a');
  Send b(1, 100, 'b');
  Send c(1, 100, 'c');
  const auto expected = wire(a) + wire(b);
  OutputQueue queue;
  FakeLink link;
  for (Send* send : {&a, &b, &c}) send->push(queue);
  link.room_bytes = 0;
  link.held = kFrameHeaderBytes + 100 + 1;
  ASSERT_TRUE(queue.flush(link).ok());
  queue.forget(1, Status(StatusCode::aborted, "enough"));
  for (Send* send : {&a, &b, &c}) {
    EXPECT_EQ(send->request.status().code(), StatusCode::aborted);
    std::fill(send->bytes.begin(), send->bytes.end(), std::byte{0});
  }
  link.room_bytes = 1000;
  link.held = 0;
  ASSERT_TRUE(queue.flush(link).ok());
  EXPECT_EQ(link.written, expected);
  EXPECT_TRUE(queue.empty());
}

TEST(OutputQueueTest, ALongMessageGoesInPiecesHoweverLittleTheLinkTakes) {
  Send a(1, 2 * kPieceBytes + 5, 'a');
  a.bytes[kPieceBytes] = std::byte{'b'};
  for (const std::size_t room : {std::size_t{100'000}, kPieceBytes, 9 * kPieceBytes}) {
    OutputQueue queue;
    FakeLink link;
    a.request.reset();
    a.push(queue);
    while (!queue.empty()) {
      EXPECT_FALSE(a.request.done());
      link.room_bytes = room;
      ASSERT_TRUE(queue.flush(link).or_throw());
    }
    EXPECT_TRUE(link.written == wire(a) + pieces(a)) << room;
    EXPECT_EQ(a.request.ended.size(), 1u);
    EXPECT_TRUE(a.request.ended.front().status.ok());
  }
}

TEST(OutputQueueTest, WhatElseThereIsToSayGoesBetweenPieces) {
  Send a(1, 10 * kPieceBytes, 'a');
  Send b(1, 2 * kPieceBytes, 'b');
  const Frame inquiry{.kind = FrameKind::inquiry};
  OutputQueue queue;
  FakeLink link;
  a.push(queue);
  b.push(queue);
  queue.push(inquiry);
  flush_all(queue, link);
  EXPECT_TRUE(link.written ==
              wire(a) + pieces(a, 0, 4) + wire(b) + wire(inquiry) + pieces(a, 4) + pieces(b));
}

TEST(OutputQueueTest, ATurnOfALongMessageIsShort) {
  Send a(1, 20 * kPieceBytes, 'a');
  OutputQueue queue;
  FakeLink link;
  a.push(queue);
  ASSERT_TRUE(queue.flush(link).or_throw());
  EXPECT_LE(link.written.size(), 10 * kPieceBytes);
}

TEST(OutputQueueTest, ForgettingCutsLongMessages) {
  for (const std::size_t sent : {std::size_t{0}, std::size_t{20}, kFrameHeaderBytes,
                                 2 * kFrameHeaderBytes + 60, 4 * kPieceBytes}) {
    SCOPED_TRACE(sent);
    Send a(1, 6 * kPieceBytes, 'a');
    Send b(1, 2 * kPieceBytes, 'b');
    Send c(2, 2 * kPieceBytes, 'c');
    const std::size_t begun = (sent + kPieceBytes - 1) / kPieceBytes;
    const auto expected = (sent == 0 ? std::vector<std::byte>() : wire(a)) +
                          pieces(a, 0, sent <= kFrameHeaderBytes ? 0 : begun) + wire(c) + pieces(c);
    OutputQueue queue;
    FakeLink link;
    for (Send* send : {&a, &b, &c}) send->push(queue);
    link.room_bytes = sent;
    ASSERT_TRUE(queue.flush(link).ok());
    queue.forget(1, Status(StatusCode::aborted, "enough"));
    for (Send* send : {&a, &b}) {
      EXPECT_EQ(send->request.ended.size(), 1u);
      EXPECT_EQ(send->request.status().code(), StatusCode::aborted);
      // The queue must not read these bytes any more.
      std::fill(send->bytes.begin(), send->bytes.end(), std::byte{0});
    }
    EXPECT_FALSE(c.request.done());
    flush_all(queue, link);
    EXPECT_TRUE(link.written == expected);
    EXPECT_TRUE(c.request.status().ok() && c.request.done());
  }
}

TEST(OutputQueueTest, TheEndOfTheLinkEndsLongMessages) {
  Send a(1, 10 * kPieceBytes, 'a');
  Send b(1, 2 * kPieceBytes, 'b');
  OutputQueue queue;
  for (Send* send : {&a, &b}) send->push(queue);
  queue.clear(Status(StatusCode::peer_lost, "gone"));
  EXPECT_TRUE(queue.empty());
  for (Send* send : {&a, &b}) EXPECT_EQ(send->request.ended.size(), 1u);
}

TEST(OutputQueueTest, ReportsAFailureAndThenDropsEverything) {
  Send a(1, 10, 'a');
  OutputQueue queue;
  FakeLink link;
  a.push(queue);
  queue.push(Frame{.kind = FrameKind::goodbye});
  link.write_failure = Status(StatusCode::peer_lost, "gone");
  EXPECT_EQ(queue.flush(link).status().code(), StatusCode::peer_lost);
  EXPECT_FALSE(a.request.done());
  queue.clear(link.write_failure);
  EXPECT_EQ(a.request.status().code(), StatusCode::peer_lost);
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace stretto::transport
