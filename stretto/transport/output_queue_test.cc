// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/output_queue.h"

#include <gtest/gtest.h>

#include <functional>

#include "stretto/transport/fake_link.h"

namespace stretto::transport {
namespace {

struct Owner : RequestOwner {
  void request_done(Request& request) override {
    ended.push_back(&request);
    if (then) then(request);
  }
  virtual ~Owner() = default;
  std::vector<Request*> ended;
  std::function<void(Request&)> then;
};

struct Send {
  Send(Owner& owner, std::uint64_t group, std::size_t size, char fill)
      : bytes(size, static_cast<std::byte>(fill)) {
    request.owner = &owner;
    request.key.group = group;
    request.outgoing = bytes;
    request.done = false;
  }
  Frame frame() const {
    return {.kind = FrameKind::message,
            .key = request.key,
            .message_bytes = bytes.size(),
            .operation = request.operation};
  }
  void push(OutputQueue& queue) { queue.push(frame(), request); }

  std::vector<std::byte> bytes;
  Request request;
};

std::vector<std::byte> wire(const Send& send) {
  const FrameHeader header = encode(send.frame());
  std::vector<std::byte> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), send.bytes.begin(), send.bytes.end());
  return bytes;
}

std::vector<std::byte> operator+(std::vector<std::byte> a, const std::vector<std::byte>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(OutputQueueTest, WritesFramesInOrderHoweverLittleTheLinkTakes) {
  Owner owner;
  Send a(owner, 1, 100, 'a');
  Send b(owner, 1, 0, 'b');
  Send c(owner, 2, 57, 'c');
  for (const std::size_t room : {1u, 7u, 56u, 57u, 100u, 1000u}) {
    OutputQueue queue;
    FakeLink link;
    owner.ended.clear();
    for (Send* send : {&a, &b, &c}) send->push(queue);
    while (!queue.empty()) {
      link.room_bytes = room;
      ASSERT_TRUE(queue.flush(link).or_throw());
    }
    EXPECT_EQ(link.written, wire(a) + wire(b) + wire(c)) << room;
    EXPECT_EQ(owner.ended, (std::vector<Request*>{&a.request, &b.request, &c.request}));
    EXPECT_FALSE(queue.flush(link).or_throw());
  }
}

TEST(OutputQueueTest, ARequestIsDoneWhenItsLastByteIsInTheLink) {
  Owner owner;
  Send a(owner, 1, 100, 'a');
  OutputQueue queue;
  FakeLink link;
  a.push(queue);
  link.room_bytes = kFrameHeaderBytes + 99;
  EXPECT_TRUE(queue.flush(link).or_throw());
  EXPECT_FALSE(a.request.done);
  EXPECT_FALSE(queue.flush(link).or_throw());
  link.room_bytes = 1;
  EXPECT_TRUE(queue.flush(link).or_throw());
  EXPECT_TRUE(a.request.done);
  EXPECT_TRUE(queue.empty());
}

TEST(OutputQueueTest, CopiesThePayloadOfFramesWithoutARequest) {
  OutputQueue queue;
  FakeLink link;
  const Frame frame{.kind = FrameKind::abort, .key = {}, .message_bytes = 5, .operation = {}};
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
    Owner owner;
    Send a(owner, 1, 100, 'a');
    Send b(owner, 1, 100, 'b');
    Send c(owner, 2, 10, 'c');
    const auto expected = (sent == 0 ? std::vector<std::byte>() : wire(a)) + wire(c);
    OutputQueue queue;
    FakeLink link;
    for (Send* send : {&a, &b, &c}) send->push(queue);
    link.room_bytes = sent;
    ASSERT_TRUE(queue.flush(link).ok());
    queue.forget(1, Status(StatusCode::aborted, "enough"));
    EXPECT_EQ(a.request.status.code(),
              sent == kFrameHeaderBytes + 100 ? StatusCode::ok : StatusCode::aborted);
    EXPECT_EQ(b.request.status.code(), StatusCode::aborted);
    EXPECT_FALSE(c.request.done);
    // The bytes belong to their owners again.
    std::fill(a.bytes.begin(), a.bytes.end(), std::byte{0});
    link.room_bytes = 1000;
    ASSERT_TRUE(queue.flush(link).ok());
    EXPECT_EQ(link.written, expected);
    EXPECT_TRUE(c.request.status.ok() && c.request.done);
    EXPECT_TRUE(queue.empty());
  }
}

TEST(OutputQueueTest, OwnersMayPushFlushAndForgetWhenTold) {
  Owner owner;
  Send a(owner, 1, 10, 'a');
  Send b(owner, 1, 20, 'b');
  Send c(owner, 2, 30, 'c');
  Send d(owner, 2, 40, 'd');
  const auto expected = wire(a) + wire(b) + wire(c) + wire(d);
  OutputQueue queue;
  FakeLink link;
  owner.then = [&](Request& request) {
    if (&request != &a.request) return;
    // b is in the link already, though its owner has not been told.
    queue.forget(1, Status(StatusCode::aborted, "enough"));
    d.push(queue);
    EXPECT_FALSE(queue.flush(link).or_throw());
  };
  for (Send* send : {&a, &b, &c}) send->push(queue);
  EXPECT_TRUE(queue.flush(link).or_throw());
  EXPECT_EQ(link.written, expected);
  EXPECT_EQ(owner.ended.size(), 4u);
  EXPECT_EQ(b.request.status.code(), StatusCode::aborted);
}

TEST(OutputQueueTest, ReportsAFailureAndThenDropsEverything) {
  Owner owner;
  Send a(owner, 1, 10, 'a');
  OutputQueue queue;
  FakeLink link;
  a.push(queue);
  queue.push(Frame{.kind = FrameKind::goodbye, .key = {}, .operation = {}});
  link.write_failure = Status(StatusCode::peer_lost, "gone");
  EXPECT_EQ(queue.flush(link).status().code(), StatusCode::peer_lost);
  EXPECT_FALSE(a.request.done);
  queue.clear(link.write_failure);
  EXPECT_EQ(a.request.status.code(), StatusCode::peer_lost);
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace stretto::transport
