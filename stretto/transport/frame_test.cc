// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace stretto::transport {
namespace {

Frame some_frame(FrameKind kind, std::uint64_t bytes) {
  return {.kind = kind,
          .key = {.group = 0x1122334455667788,
                  .sequence = 0x99aabbcc,
                  .segment = 0xddeeff00,
                  .message = 0x12345678},
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
  EXPECT_EQ(frame.status().code(), StatusCode::protocol);
  EXPECT_NE(frame.status().message().find(text), std::string::npos) << frame.status().message();
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
      {FrameKind::agreement, kAgreementBytes}};
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

TEST(FrameTest, RefusesSizesThatTheKindCannotHave) {
  const std::vector<std::pair<FrameKind, std::uint64_t>> cases = {
      {FrameKind::message, kEagerBytes + 1},
      {FrameKind::message, ~0ull},
      {FrameKind::announce, 1ull << 48},
      {FrameKind::clear, 1ull << 48},
      {FrameKind::data, 1ull << 48},
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

}  // namespace
}  // namespace stretto::transport
