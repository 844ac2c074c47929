// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stretto/transport/endpoint.h"
#include "stretto/transport/frame.h"
#include "stretto/transport/memory.h"
#include "stretto/transport/ucx/settings.h"
#include "tests/support/expect_contains.h"
#include "tests/support/fake_link.h"
#include "tests/support/held_plane.h"
#include "tests/support/recording_listener.h"
#include "tests/support/tracked_request.h"

namespace stretto::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Rank 0 of five.
class EndpointTest : public ::testing::Test {
 protected:
  EndpointTest() {
    Endpoint::Parts parts{.rank = 0};
    parts.names = {"node0 pid 1", "node1 pid 2", "node1 pid 3", "node2 pid 4", "node1 pid 5"};
    parts.links.push_back(nullptr);
    for (int r = 1; r < 5; ++r) {
      auto link = std::make_unique<FakeLink>();
      links.push_back(link.get());
      parts.links.push_back(std::move(link));
    }
    endpoint = Endpoint::create(std::move(parts)).or_throw();
  }

  std::vector<FakeLink*> links{nullptr};
  std::unique_ptr<Endpoint> endpoint;
};

TEST_F(EndpointTest, GivesAQuietPeerSomethingToAcknowledge) {
  TimePoint now = Clock::now();
  const auto check = [&] { endpoint->check_contacts(now += seconds(1)); };
  check();
  EXPECT_TRUE(links[1]->written.empty());
  links[1]->contact.wants_sign = true;
  check();
  check();
  EXPECT_TRUE(links[2]->written.empty());
  ASSERT_EQ(links[1]->written.size(), 2 * kFrameHeaderBytes);
  FrameHeader header;
  std::copy_n(links[1]->written.begin(), header.size(), header.begin());
  EXPECT_EQ(decode(header).or_throw().kind, FrameKind::credit);
  // Only one sign waits behind output that cannot leave.
  links[1]->room_bytes = 0;
  for (int i = 0; i < 100; ++i) check();
  links[1]->room_bytes = 1 << 20;
  endpoint->progress();
  EXPECT_EQ(links[1]->written.size(), 3 * kFrameHeaderBytes);
  // The other side accepts the frames as signs of life.
  for (int i = 0; i < 3; ++i) links[2]->feed(header);
  endpoint->progress();
  EXPECT_TRUE(endpoint->peer_status(2).status.ok());
}

TEST_F(EndpointTest, SignsOfLifeAreNoMessageThatArrives) {
  const TimePoint now = Clock::now();
  links[1]->contact.received_rate = 64;
  endpoint->check_contacts(now);
  EXPECT_EQ(endpoint->contact(1).received_rate, 0);
  links[1]->feed(encode({.kind = FrameKind::message, .message_bytes = 10}));
  endpoint->progress();
  endpoint->check_contacts(now + seconds(1));
  EXPECT_EQ(endpoint->contact(1).received_rate, 64);
  EXPECT_EQ(endpoint->contact(0).received_rate, 0) << "of this rank itself there is nothing to say";
}

// The message still arrives between two of its pieces, when no frame of it is coming.
TEST_F(EndpointTest, ALongMessageArrivesUntilItsLastPieceHasCome) {
  const MessageKey key{.group = 1};
  std::vector<std::byte> bytes(2 * kPieceBytes);
  TrackedRequest request;
  request.peer = 1;
  request.key = key;
  request.incoming = bytes;
  endpoint->recv(request);
  const auto feed = [&](FrameKind kind, std::size_t left_bytes) {
    const Frame frame{.kind = kind, .key = key, .message_bytes = left_bytes};
    links[1]->feed(encode(frame));
    links[1]->feed(std::vector<std::byte>(frame.payload_bytes()));
    while (endpoint->progress()) continue;
  };
  const TimePoint now = Clock::now();
  links[1]->contact.received_rate = 64;
  feed(FrameKind::data, bytes.size());
  feed(FrameKind::piece, bytes.size());
  endpoint->check_contacts(now);
  EXPECT_FALSE(request.done());
  EXPECT_EQ(endpoint->contact(1).received_rate, 64);
  feed(FrameKind::piece, kPieceBytes);
  endpoint->check_contacts(now + seconds(1));
  EXPECT_TRUE(request.done() && request.status().ok());
  EXPECT_EQ(endpoint->contact(1).received_rate, 0);
}

// A data plane moves the messages. The link only gives signs that this rank is there.
TEST(Endpoint, ALinkWithoutMessagesGivesSignsOfLifeAndTakesNothingElse) {
  Endpoint::Parts parts{.rank = 0, .data_plane = std::make_unique<HeldPlane>()};
  auto owned = std::make_unique<FakeLink>();
  FakeLink* const link = owned.get();
  parts.links.push_back(nullptr);
  parts.links.push_back(std::move(owned));
  const auto endpoint = Endpoint::create(std::move(parts)).or_throw();
  link->contact.wants_sign = true;
  endpoint->check_contacts(Clock::now());
  ASSERT_EQ(link->written.size(), kFrameHeaderBytes);
  // The other end of such a link accepts the sign.
  link->feed(link->written);
  endpoint->progress();
  EXPECT_TRUE(endpoint->peer_status(1).status.ok());
  link->feed(encode({.kind = FrameKind::message, .message_bytes = 10}));
  endpoint->progress();
  expect_failure(endpoint->peer_status(1).status, StatusCode::protocol,
                 "the ranks have been set up with different data planes");
}

// A program may catch the exception that names an unreachable rank after it has destroyed the
// communicator. The destructor must not wait for this rank.
TEST_F(EndpointTest, LastWordsDoNotWaitForWhoIsOutOfReach) {
  links[1]->room_bytes = links[2]->room_bytes = 0;
  links[3]->finished = false;
  for (int r = 1; r < 4; ++r) links[r]->contact = {.silence = seconds(8), .silent = true};
  endpoint->check_contacts(Clock::now());
  const std::vector<Rank> members = {0, 1, 2};
  endpoint->forget(7, members, {StatusCode::peer_lost, "lost"}, Farewell::unwinding);
  const TimePoint begin = Clock::now();
  endpoint.reset();
  EXPECT_LT(Clock::now() - begin, milliseconds(500));
}

TEST_F(EndpointTest, LastWordsDoNotWaitForWhoHasGone) {
  links[1]->ended = true;
  links[1]->finished = false;
  endpoint->progress();
  ASSERT_EQ(endpoint->peer_status(1).status.code(), StatusCode::peer_lost);
  const std::vector<Rank> members = {0, 1, 2};
  endpoint->forget(7, members, {StatusCode::peer_lost, "lost"}, Farewell::unwinding);
  const TimePoint begin = Clock::now();
  endpoint.reset();
  EXPECT_LT(Clock::now() - begin, milliseconds(500));
}

TEST_F(EndpointTest, NamesAllFromWhomNothingComesBack) {
  RecordingListener listener;
  endpoint->set_listener(&listener);
  const TimePoint now = Clock::now();
  endpoint->check_contacts(now);
  EXPECT_TRUE(listener.lost.empty());
  links[1]->contact.silence = milliseconds(8600);
  links[2]->contact = {.silence = seconds(9), .lost = true, .heard = true};
  links[3]->contact.silence = milliseconds(500);
  links[4]->contact.silence = seconds(7);
  endpoint->check_contacts(now + milliseconds(1));
  EXPECT_TRUE(listener.lost.empty()) << "the links were asked a moment ago";
  endpoint->check_contacts(now + seconds(1));
  ASSERT_EQ(listener.lost.size(), 1u);
  EXPECT_EQ(listener.lost[0].first, Rank(2));
  EXPECT_EQ(listener.lost[0].second.code(), StatusCode::peer_lost);
  const std::string text(listener.lost[0].second.message());
  EXPECT_TRUE(
      text.starts_with("lost rank 2 (fake, node1 pid 3): nothing has come back from it for "
                       "9.0 s, though it is still heard, nor from rank 1, 4: the network to it, "
                       "or its host, is down"))
      << text;
  EXPECT_FALSE(endpoint->peer_status(2).status.ok());
  EXPECT_TRUE(endpoint->peer_status(1).status.ok());
  endpoint->check_contacts(now + seconds(2));
  EXPECT_EQ(listener.lost.size(), 1u) << "told once";
}

Frame some_frame(FrameKind kind, std::uint64_t bytes) {
  return {.kind = kind,
          .key = {.group = 0x1122334455667788,
                  .sequence = 0x99aabbcc,
                  .segment = 0xddeeff00,
                  .message = kind == FrameKind::abort ? 1u : 0x12345678u},
          .message_bytes = bytes,
          .operation = {.collective = Collective::broadcast,
                        .op = ReduceOp::bit_xor,
                        .dtype = DType::boolean,
                        .algorithm = 200,
                        .root = -1,
                        .count = 1ull << 60}};
}

template <class T>
FrameHeader with(FrameHeader header, std::size_t offset, T value) {
  std::memcpy(header.data() + offset, &value, sizeof(value));
  return header;
}

void expect_refused(const FrameHeader& header, std::string_view text) {
  const Result<Frame> frame = decode(header);
  ASSERT_FALSE(frame.ok()) << text;
  expect_failure(frame.status(), StatusCode::protocol, text);
}

TEST(FrameTest, ComesBackAsItWasForEveryKind) {
  const std::vector<std::pair<FrameKind, std::uint64_t>> cases = {
      {FrameKind::message, 0},
      {FrameKind::message, kEagerBytes},
      {FrameKind::announce, kEagerBytes + 1},
      {FrameKind::announce, (1ull << 48) - 1},
      {FrameKind::announce, 0},
      {FrameKind::clear, kEagerBytes + 1},
      {FrameKind::clear, 7},
      {FrameKind::data, kEagerBytes + 1},
      {FrameKind::data, 0},
      {FrameKind::abort, 0},
      {FrameKind::abort, kAbortTextBytes},
      {FrameKind::goodbye, 0},
      {FrameKind::farewell, 0},
      {FrameKind::inquiry, 0},
      {FrameKind::report, 0},
      {FrameKind::report, kReportTextBytes},
      {FrameKind::credit, 1},
      {FrameKind::credit, ~0ull},
      {FrameKind::agreement, 0},
      {FrameKind::agreement, kAgreementBytes},
      {FrameKind::piece, 1}};
  for (const auto& [kind, bytes] : cases) {
    const Frame frame = some_frame(kind, bytes);
    Result<Frame> decoded = decode(encode(frame));
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded->kind, frame.kind);
    EXPECT_EQ(decoded->key, frame.key);
    EXPECT_EQ(decoded->message_bytes, bytes);
    EXPECT_EQ(decoded->operation, frame.operation);
    const bool header_only =
        kind == FrameKind::announce || kind == FrameKind::clear || kind == FrameKind::credit;
    EXPECT_EQ(decoded->payload_bytes(), header_only ? 0 : bytes);
  }
}

TEST(FrameTest, OfALongMessageHasNoMoreThanAPiece) {
  const auto payload = [](FrameKind kind, std::uint64_t bytes) {
    return decode(encode(some_frame(kind, bytes))).or_throw().payload_bytes();
  };
  EXPECT_EQ(payload(FrameKind::data, kPieceBytes), kPieceBytes);
  EXPECT_EQ(payload(FrameKind::data, kPieceBytes + 1), 0u);
  EXPECT_EQ(payload(FrameKind::piece, kPieceBytes), kPieceBytes);
  EXPECT_EQ(payload(FrameKind::piece, kPieceBytes + 1), kPieceBytes);
}

TEST(FrameTest, RefusesSizesThatTheKindCannotHave) {
  const std::vector<std::pair<FrameKind, std::uint64_t>> cases = {
      {FrameKind::message, kEagerBytes + 1},
      {FrameKind::message, ~0ull},
      {FrameKind::announce, 1ull << 48},
      {FrameKind::clear, 1ull << 48},
      {FrameKind::data, 1ull << 48},
      {FrameKind::piece, 1ull << 48},
      {FrameKind::abort, kAbortTextBytes + 1},
      {FrameKind::goodbye, 1},
      {FrameKind::farewell, 1},
      {FrameKind::inquiry, 1},
      {FrameKind::report, kReportTextBytes + 1},
      {FrameKind::agreement, kAgreementBytes + 1}};
  for (const auto& [kind, bytes] : cases) {
    expect_refused(encode(some_frame(kind, bytes)), "claims");
  }
}

TEST(FrameTest, RefusesStagesThatDoNotExist) {
  constexpr std::size_t kMessage = 24;
  const FrameHeader good = encode(some_frame(FrameKind::abort, 10));
  for (const std::uint32_t stage : {0u, 2u}) EXPECT_TRUE(decode(with(good, kMessage, stage)).ok());
  for (const std::uint32_t stage : {3u, 256u, 0xffffffffu}) {
    expect_refused(with(good, kMessage, stage), "does not exist");
  }
}

TEST(FrameTest, RefusesWhatIsNoFrame) {
  const FrameHeader good = encode(some_frame(FrameKind::message, 10));
  ASSERT_TRUE(decode(good).ok());
  expect_refused(FrameHeader{}, "STR1");
  for (std::size_t byte = 0; byte < 4; ++byte) {
    expect_refused(with(good, byte, std::uint8_t{0xff}), "STR1");
  }
  for (const std::uint32_t kind : {0u, kFrameKindCount + 1u, 256u + 1u, 0xffffffffu}) {
    expect_refused(with(good, 4, kind), "unknown kind");
  }
  expect_refused(with(good, 28, std::uint32_t{1}), "reserved");
}

TEST(FrameTest, RefusesOperationsThatDoNotExist) {
  constexpr std::size_t kOperation = kFrameHeaderBytes - sizeof(OperationDescriptor);
  const FrameHeader good = encode(some_frame(FrameKind::message, 10));
  expect_refused(with(good, kOperation, std::uint8_t{kCollectiveCount}), "does not exist");
  expect_refused(with(good, kOperation + 1, std::uint8_t{kReduceOpCount}), "does not exist");
  expect_refused(with(good, kOperation + 2, std::uint8_t{kDTypeCount}), "does not exist");
  for (std::size_t field = 0; field < 3; ++field) {
    expect_refused(with(good, kOperation + field, std::uint8_t{0xff}), "does not exist");
  }
}

TEST(RegionTableTest, LocatesOnlyWhatLiesInside) {
  std::vector<std::byte> memory(100);
  RegionTable table;
  table.insert(3, ByteSpan(memory).first(40));
  table.insert(4, ByteSpan(memory).subspan(40));
  EXPECT_EQ(table.locate(memory.data(), 40).region, 3u);
  EXPECT_EQ(table.locate(memory.data() + 40, 60).region, 4u);
  EXPECT_EQ(table.locate(memory.data() + 50, 1).offset_bytes, 10u);
  EXPECT_FALSE(table.locate(memory.data() + 39, 2).valid()) << "in two regions";
  EXPECT_FALSE(table.locate(memory.data() + 99, 2).valid());
  EXPECT_FALSE(table.locate(memory.data(), std::numeric_limits<std::size_t>::max()).valid());
  EXPECT_FALSE(table.locate(nullptr, 1).valid());
}

TEST(RegionTableTest, ErasesAndReplaces) {
  std::vector<std::byte> a(10);
  std::vector<std::byte> b(20);
  RegionTable table;
  table.insert(1, a);
  // A peer may use a number twice: the old bytes must not stay reachable under it.
  table.insert(1, b);
  EXPECT_EQ(table.find({1, 0}, 1), b.data());
  table.erase(1);
  EXPECT_EQ(table.find({1, 0}, 0), nullptr);
  table.erase(1);
}

TEST(RegionNumbersTest, BeginAnewBehindTheLastThatIsOfItsKind) {
  RegionNumbers first;
  EXPECT_EQ(first.next(), 1u);
  EXPECT_EQ(first.next(), 2u);
  RegionNumbers numbers(RegionNumbers::kLast - 1);
  const std::uint32_t last = numbers.next();
  EXPECT_EQ(RemoteAddress{last}.kind(), MemoryKind::registered);
  EXPECT_EQ(RemoteAddress{RemoteAddress::on_device(last)}.kind(), MemoryKind::device);
  EXPECT_EQ(numbers.next(), 2u) << "the first one is the inbox of its rank";
}

TEST(UcxSettingsTest, AreLeftToUcxInEveryCaseOrNot) {
  const auto is_left = [](const std::string& value) {
    return packets::is_auto("#\nUCX_RNDV_SCHEME=auto\nUCX_RNDV_THRESH=" + value + "\nUCX_X=1\n",
                            "UCX_RNDV_THRESH");
  };
  for (const char* left : {"auto", "intra:auto,inter:auto"}) EXPECT_TRUE(is_left(left)) << left;
  for (const char* set : {"", "8k", "autobahn", "intra:auto,inter:8k", "intra:8k,inter:auto"}) {
    EXPECT_FALSE(is_left(set)) << set;
  }
  EXPECT_FALSE(packets::is_auto("UCX_RNDV_SCHEME=auto\n", "UCX_RNDV_THRESH"));
}

TEST(PrivateMemoryTest, IsReachedByNobody) {
  PrivateMemory memory;
  const Region region = memory.allocate(100).or_throw();
  EXPECT_EQ(region.bytes.size(), 100u);
  EXPECT_FALSE(region.address.valid());
  EXPECT_FALSE(memory.locate(region.bytes.data(), 1).valid());
  EXPECT_EQ(memory.resolve(0, region.address, 1), nullptr);
  EXPECT_FALSE(memory.reaches(0));
}

}  // namespace
}  // namespace stretto::transport
