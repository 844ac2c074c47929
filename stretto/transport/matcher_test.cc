// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/support/tracked_request.h"

namespace stretto::transport {
namespace {

constexpr std::size_t kLarge = kEagerBytes + 10;
const MessageKey kKey{.group = 1, .sequence = 2, .segment = 3, .message = 4};

class MatcherTest : public ::testing::Test {
 protected:
  struct Receive {
    std::vector<std::byte> bytes;
    TrackedRequest request;
  };
  TrackedRequest& receive(std::size_t size, const MessageKey& key = kKey) {
    auto& entry = *receives_.emplace_back(std::make_unique<Receive>());
    entry.bytes.resize(size);
    entry.request.peer = 6;
    entry.request.key = key;
    entry.request.incoming = entry.bytes;
    return entry.request;
  }
  static Frame frame(FrameKind kind, std::size_t size, const MessageKey& key = kKey) {
    return {.kind = kind, .key = key, .message_bytes = size};
  }
  using Announcement = Matcher::Announcement;
  Announcement announce(std::size_t size, const MessageKey& key = kKey) {
    return matcher_.announced(frame(FrameKind::announce, size, key)).or_throw();
  }
  // Makes a whole message arrive for which there is no receive.
  Matcher::Unexpected& arrive_unexpected(std::size_t size, std::byte fill,
                                         const MessageKey& key = kKey) {
    Matcher::Unexpected* unexpected = nullptr;
    EXPECT_EQ(matcher_.message_header(frame(FrameKind::message, size, key), &unexpected), nullptr);
    EXPECT_NE(unexpected, nullptr);
    std::fill(unexpected->bytes.begin(), unexpected->bytes.end(), fill);
    return *unexpected;
  }

  std::size_t unexpected_count_ = 0;
  Matcher matcher_{5, 6, &unexpected_count_};
  std::vector<std::unique_ptr<Receive>> receives_;
};

TEST_F(MatcherTest, ReceiveFirst) {
  TrackedRequest& posted = receive(10);
  EXPECT_FALSE(matcher_.post_receive(posted));
  Matcher::Unexpected* unexpected = nullptr;
  EXPECT_EQ(matcher_.message_header(frame(FrameKind::message, 10), &unexpected), &posted);
  EXPECT_EQ(unexpected, nullptr);
  EXPECT_FALSE(posted.done()) << "its bytes are not here yet";
  EXPECT_NE(matcher_.message_header(frame(FrameKind::message, 10), &unexpected), &posted);
}

TEST_F(MatcherTest, MessageFirst) {
  Matcher::Unexpected& unexpected = arrive_unexpected(10, std::byte{7});
  EXPECT_FALSE(matcher_.has_arrived(kKey)) << "not all of it is here";
  EXPECT_TRUE(matcher_.unexpected_complete(unexpected));
  EXPECT_TRUE(matcher_.has_arrived(kKey));
  EXPECT_FALSE(matcher_.has_arrived({.group = 1, .sequence = 2, .segment = 3, .message = 5}));
  EXPECT_GE(matcher_.unexpected_bytes(), 10u);
  TrackedRequest& posted = receive(10);
  EXPECT_FALSE(matcher_.post_receive(posted));
  EXPECT_TRUE(posted.done() && posted.status().ok());
  EXPECT_EQ(posted.incoming[9], std::byte{7});
  EXPECT_FALSE(matcher_.has_arrived(kKey));
  EXPECT_EQ(matcher_.unexpected_bytes(), 0u);
}

TEST_F(MatcherTest, ReceiveWhileTheBytesAreComing) {
  Matcher::Unexpected& unexpected = arrive_unexpected(10, std::byte{7});
  TrackedRequest& posted = receive(10);
  EXPECT_FALSE(matcher_.post_receive(posted));
  EXPECT_FALSE(posted.done());
  EXPECT_FALSE(matcher_.unexpected_complete(unexpected)) << "it has a receive";
  EXPECT_TRUE(posted.done() && posted.status().ok());
  EXPECT_EQ(posted.incoming[0], std::byte{7});
  EXPECT_EQ(matcher_.unexpected_bytes(), 0u);
}

TEST_F(MatcherTest, LargeMessagesWaitForTheirReceive) {
  TrackedRequest& first = receive(kLarge);
  EXPECT_TRUE(matcher_.post_receive(first)) << "the peer must be told";
  EXPECT_EQ(announce(kLarge), Announcement::settled);
  EXPECT_EQ(matcher_.data_header(frame(FrameKind::data, kLarge)), &first);

  EXPECT_FALSE(matcher_.has_arrived(kKey));
  EXPECT_EQ(announce(kLarge), Announcement::unexpected);
  EXPECT_TRUE(matcher_.has_arrived(kKey)) << "a receive would take it";
  TrackedRequest& second = receive(kLarge);
  EXPECT_TRUE(matcher_.post_receive(second));
  EXPECT_EQ(matcher_.data_header(frame(FrameKind::data, kLarge)), &second);
  EXPECT_EQ(matcher_.data_header(frame(FrameKind::data, kLarge)), nullptr);
  EXPECT_EQ(matcher_.unexpected_bytes(), 0u);
}

// A sender keeps small messages, too, if the receiver already holds too many bytes.
TEST_F(MatcherTest, SmallMessagesMayWaitForTheirReceiveToo) {
  TrackedRequest& first = receive(10);
  EXPECT_FALSE(matcher_.post_receive(first)) << "small ones come without being called";
  EXPECT_EQ(announce(10), Announcement::clear);
  EXPECT_EQ(matcher_.data_header(frame(FrameKind::data, 10)), &first);

  EXPECT_EQ(announce(10), Announcement::unexpected);
  TrackedRequest& second = receive(10);
  EXPECT_TRUE(matcher_.post_receive(second)) << "the peer must be told";
  EXPECT_EQ(matcher_.data_header(frame(FrameKind::data, 10)), &second);

  EXPECT_EQ(announce(11), Announcement::unexpected);
  TrackedRequest& wrong = receive(10);
  EXPECT_FALSE(matcher_.post_receive(wrong));
  EXPECT_EQ(wrong.status().code(), StatusCode::mismatch);
  EXPECT_EQ(wrong.status().message().substr(0, 43), "rank 6 sent 11 bytes, rank 5 expects 10, bo");
}

TEST_F(MatcherTest, AnnouncementsWithoutEndAreRefused) {
  Status status;
  for (std::uint32_t i = 0; status.ok() && i < 1'000'000; ++i) {
    status = matcher_.announced(frame(FrameKind::announce, 10, {.message = i})).status();
  }
  EXPECT_EQ(status.code(), StatusCode::protocol);
}

TEST_F(MatcherTest, LargeSendsWaitForTheirClear) {
  const std::vector<std::byte> bytes(kLarge);
  TrackedRequest first;
  TrackedRequest second;
  first.key = second.key = kKey;
  first.outgoing = second.outgoing = bytes;
  EXPECT_FALSE(matcher_.post_waiting_send(first));
  EXPECT_EQ(matcher_.clear_arrived(frame(FrameKind::clear, kLarge)).or_throw(), &first);
  EXPECT_EQ(matcher_.clear_arrived(frame(FrameKind::clear, kLarge)).or_throw(), nullptr);
  EXPECT_TRUE(matcher_.post_waiting_send(second)) << "its clear is here";
}

TEST_F(MatcherTest, EqualKeysAreServedInOrder) {
  TrackedRequest& large = receive(kLarge);
  TrackedRequest& small = receive(10);
  matcher_.post_receive(large);
  matcher_.post_receive(small);
  // The large one was sent first, but its bytes come last.
  announce(kLarge);
  Matcher::Unexpected* unexpected = nullptr;
  EXPECT_EQ(matcher_.message_header(frame(FrameKind::message, 10), &unexpected), &small);
  EXPECT_EQ(matcher_.data_header(frame(FrameKind::data, kLarge)), &large);

  matcher_.unexpected_complete(arrive_unexpected(3, std::byte{1}));
  matcher_.unexpected_complete(arrive_unexpected(3, std::byte{2}));
  for (const auto fill : {std::byte{1}, std::byte{2}}) {
    TrackedRequest& posted = receive(3);
    matcher_.post_receive(posted);
    EXPECT_TRUE(posted.done());
    EXPECT_EQ(posted.incoming[0], fill);
  }
}

// The receive of the large message is posted second, but its clear comes first.
TEST_F(MatcherTest, AmongEqualKeysAClearIsForTheFirstOfItsClass) {
  const std::vector<std::byte> bytes(kLarge);
  const auto send_of = [&](std::size_t size) {
    auto send = std::make_unique<TrackedRequest>();
    send->key = kKey;
    send->outgoing = std::span(bytes).first(size);
    return send;
  };
  const auto small = send_of(10), large = send_of(kLarge), other_large = send_of(kLarge);
  EXPECT_FALSE(matcher_.post_waiting_send(*small));
  EXPECT_FALSE(matcher_.post_waiting_send(*large));
  const auto clear = [&](std::size_t size) {
    return matcher_.clear_arrived(frame(FrameKind::clear, size)).or_throw();
  };
  EXPECT_EQ(clear(kLarge), large.get());
  EXPECT_EQ(clear(kLarge), nullptr);
  EXPECT_EQ(clear(10), small.get());
  EXPECT_FALSE(matcher_.post_waiting_send(*small)) << "what is here is for a large one";
  EXPECT_TRUE(matcher_.post_waiting_send(*other_large));

  TrackedRequest& first = receive(10);
  TrackedRequest& second = receive(kLarge);
  EXPECT_FALSE(matcher_.post_receive(first));
  EXPECT_TRUE(matcher_.post_receive(second));
  EXPECT_EQ(announce(10), Announcement::clear);
  EXPECT_EQ(matcher_.data_header(frame(FrameKind::data, kLarge)), &second);
  EXPECT_EQ(matcher_.data_header(frame(FrameKind::data, 10)), &first);
}

// This holds however early clears come. Otherwise two messages could be exchanged.
TEST_F(MatcherTest, LargeMessagesInTheWrongOrderAreAMismatch) {
  const std::vector<std::byte> bytes(2 * kLarge);
  TrackedRequest send;
  send.key = kKey;
  send.outgoing = bytes;
  EXPECT_EQ(matcher_.clear_arrived(frame(FrameKind::clear, kLarge)).or_throw(), nullptr);
  EXPECT_EQ(matcher_.clear_arrived(frame(FrameKind::clear, 2 * kLarge)).or_throw(), nullptr);
  EXPECT_TRUE(matcher_.post_waiting_send(send)) << "by the first clear";

  TrackedRequest& first = receive(kLarge);
  TrackedRequest& second = receive(2 * kLarge);
  EXPECT_TRUE(matcher_.post_receive(first));
  EXPECT_TRUE(matcher_.post_receive(second));
  EXPECT_EQ(matcher_.data_header(frame(FrameKind::data, 2 * kLarge)), nullptr);
  EXPECT_EQ(first.status().code(), StatusCode::mismatch);
}

TEST_F(MatcherTest, AMismatchUsesUpBothSides) {
  matcher_.unexpected_complete(arrive_unexpected(10, std::byte{1}));
  TrackedRequest& other_size = receive(11);
  EXPECT_FALSE(matcher_.post_receive(other_size));
  EXPECT_EQ(other_size.status().code(), StatusCode::mismatch);
  EXPECT_EQ(matcher_.unexpected_bytes(), 0u);

  TrackedRequest& other_operation = receive(10);
  other_operation.operation.count = 9;
  matcher_.post_receive(other_operation);
  Matcher::Unexpected* unexpected = nullptr;
  EXPECT_EQ(matcher_.message_header(frame(FrameKind::message, 10), &unexpected), nullptr);
  EXPECT_EQ(unexpected, nullptr) << "nobody will ask for it";
  EXPECT_EQ(other_operation.status().code(), StatusCode::mismatch);
  EXPECT_EQ(other_operation.ended.size(), 1u);
}

TEST_F(MatcherTest, ForgettingConcernsOneGroup) {
  const MessageKey other{.group = 2};
  TrackedRequest& mine = receive(10);
  TrackedRequest& others = receive(10, other);
  matcher_.post_receive(mine);
  matcher_.post_receive(others);
  TrackedRequest send;
  send.key = kKey;
  matcher_.post_waiting_send(send);
  MessageKey unasked = kKey;
  unasked.message = 99;
  Matcher::Unexpected& coming = arrive_unexpected(10, std::byte{1}, unasked);
  TrackedRequest& claiming = receive(10, unasked);
  matcher_.post_receive(claiming);
  matcher_.unexpected_complete(arrive_unexpected(20, std::byte{1}, unasked));
  MessageKey cleared = kKey;
  cleared.message = 98;
  (void)matcher_.clear_arrived(frame(FrameKind::clear, kLarge, cleared));

  const std::uint64_t group = 1;
  matcher_.end_requests(&group, Status(StatusCode::aborted, "enough"));
  for (const TrackedRequest* request : {&mine, &send, &claiming}) {
    EXPECT_TRUE(request->done());
    EXPECT_EQ(request->status().code(), StatusCode::aborted);
  }
  EXPECT_FALSE(others.done());
  // The parser is still writing to `coming`.
  EXPECT_GT(matcher_.unexpected_bytes(), 0u);
  EXPECT_EQ(unexpected_count_, 1u);
  std::fill(coming.bytes.begin(), coming.bytes.end(), std::byte{2});
  EXPECT_FALSE(matcher_.unexpected_complete(coming));
  EXPECT_EQ(matcher_.unexpected_bytes(), 0u);
  EXPECT_EQ(unexpected_count_, 0u);
  send.key = cleared;
  EXPECT_FALSE(matcher_.post_waiting_send(send)) << "the clear was forgotten as well";
}

TEST_F(MatcherTest, LosingThePeerKeepsWhatItSent) {
  TrackedRequest& posted = receive(10);
  matcher_.post_receive(posted);
  MessageKey whole = kKey;
  whole.message = 99;
  matcher_.unexpected_complete(arrive_unexpected(3, std::byte{3}, whole));
  announce(kLarge, {.group = 1, .message = 50});
  EXPECT_EQ(unexpected_count_, 2u);
  matcher_.end_requests(nullptr, Status(StatusCode::peer_lost, "gone"));
  EXPECT_EQ(unexpected_count_, 1u);
  EXPECT_EQ(posted.status().code(), StatusCode::peer_lost);
  EXPECT_TRUE(matcher_.has_arrived(whole));
  EXPECT_FALSE(matcher_.has_arrived({.group = 1, .message = 50})) << "its bytes are with the peer";
  TrackedRequest& late = receive(3, whole);
  EXPECT_FALSE(matcher_.post_receive(late));
  EXPECT_TRUE(late.done() && late.status().ok());
  EXPECT_EQ(matcher_.unexpected_bytes(), 0u);
  EXPECT_EQ(unexpected_count_, 0u);
}

TEST_F(MatcherTest, ClearsWithoutEndAreRefused) {
  Status status;
  for (std::uint32_t i = 0; status.ok() && i < 1'000'000; ++i) {
    status = matcher_.clear_arrived(frame(FrameKind::clear, kLarge, {.message = i})).status();
  }
  EXPECT_EQ(status.code(), StatusCode::protocol);
}

TEST_F(MatcherTest, EmptyMessagesCostSomethingToo) {
  for (int i = 0; i < 100; ++i) matcher_.unexpected_complete(arrive_unexpected(0, std::byte{0}));
  EXPECT_GE(matcher_.unexpected_bytes(), 100 * sizeof(Frame));
}

// Otherwise the limit on the bytes of unexpected messages would have no effect.
TEST_F(MatcherTest, ASmallMessageDoesNotTakeTheMemoryOfALargeOne) {
  for (const std::size_t size : {std::size_t{60000}, std::size_t{1}, std::size_t{50000}}) {
    MessageKey key = kKey;
    key.message = static_cast<std::uint32_t>(size);
    Matcher::Unexpected& unexpected = arrive_unexpected(size, std::byte{7}, key);
    EXPECT_LE(unexpected.bytes.capacity(), unexpected_cost_bytes(size) * 3 / 2);
    matcher_.unexpected_complete(unexpected);
    TrackedRequest& late = receive(size, key);
    EXPECT_FALSE(matcher_.post_receive(late));
    EXPECT_TRUE(late.done() && late.status().ok());
  }
  EXPECT_EQ(matcher_.unexpected_bytes(), 0u);
}

TEST_F(MatcherTest, AMessageTakesTheMemoryOfOneBefore) {
  const std::byte* before = nullptr;
  for (int i = 0; i < 3; ++i) {
    Matcher::Unexpected& unexpected = arrive_unexpected(60000, std::byte{7});
    EXPECT_TRUE(before == nullptr || unexpected.bytes.data() == before);
    before = unexpected.bytes.data();
    matcher_.unexpected_complete(unexpected);
    EXPECT_FALSE(matcher_.post_receive(receive(60000)));
  }
}

}  // namespace
}  // namespace stretto::transport
