// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "stretto/base/operation.h"
#include "stretto/base/status.h"
#include "stretto/transport/transport.h"

namespace stretto::transport {

// What a stream between two ranks consists of: a header of 64 bytes, then `payload_bytes` bytes.
enum class FrameKind : std::uint8_t {
  message = 1,   // A message of at most kEagerBytes, with its bytes.
  announce = 2,  // A message waits for its receive: a larger one, or any once the receiver holds
                 // kUnexpectedBytesMax. No payload; `message_bytes` is its size.
  clear = 3,     // The receive of such a message has been posted. No payload.
  data = 4,      // Such a message, after its clear, with its bytes; of more than kPieceBytes, it
                 // only begins, and its bytes follow in pieces.
  abort = 5,     // The sender has abandoned key.group. Payload: the reason (kAbortTextBytes at
                 // most); key.sequence: the status code; key.segment: the rank at fault or kNoRank;
                 // key.message: the GroupStage.
  goodbye = 6,   // The sender leaves in good order; the end of the stream follows.
  farewell = 7,  // The sender has destroyed its communicator of key.group. No payload;
                 // key.segment: how it came to it, a Farewell.
  inquiry = 8,  // Where is the receiver, seen from operation key.sequence of key.group? No payload;
                // `operation` is what the sender, who waits in it, believes it to be.
  report = 9,   // The answer to an inquiry, with its key. Payload: text (kReportTextBytes at most).
  credit = 10,  // The sender has dropped unexpected messages. No payload; `message_bytes` is what
                // all messages so far, less those kept, count for (unexpected_cost_bytes()).
  agreement = 11,  // What the sender says in round key.segment of agreement key.sequence of
                   // key.group. Payload: as the listener likes it (kAgreementBytes at most).
  piece = 12,  // The next bytes, kPieceBytes at most, of the first message with its key that has
               // begun and not ended; `message_bytes` is how many are left, these among them. The
               // pieces of a message follow each other, with whatever frames between them.
};
inline constexpr int kFrameKindCount = 12;

inline constexpr std::size_t kAbortTextBytes = 2048;
inline constexpr std::size_t kReportTextBytes = 512;
// Four for each of more ranks than a job has.
inline constexpr std::size_t kAgreementBytes = 1024 * 1024;
inline constexpr std::uint32_t kNoRank = 0xffffffff;
// Between which what else there is to say goes: what has begun to go cannot be taken back.
inline constexpr std::size_t kPieceBytes = 1024 * 1024;

// What messages that nobody has asked for yet may cost a receiver, per peer. The sender keeps to
// it: what is beyond waits with the sender, announced, so that a receiver can always read on and
// hears of aborts and of the end however much has come unexpectedly.
inline constexpr std::uint64_t kUnexpectedBytesMax = 64 * 1024 * 1024;
// Each message counts for this beside its bytes: small ones without end are no way round the limit.
inline constexpr std::uint64_t kUnexpectedOverheadBytes = 256;

constexpr std::uint64_t unexpected_cost_bytes(std::uint64_t message_bytes) {
  return message_bytes + kUnexpectedOverheadBytes;
}

struct Frame {
  FrameKind kind = FrameKind::message;
  MessageKey key = {};
  std::uint64_t message_bytes = 0;
  OperationDescriptor operation = {};

  // How many bytes follow the header in the stream.
  std::uint64_t payload_bytes() const {
    const bool number_only =
        kind == FrameKind::announce || kind == FrameKind::clear || kind == FrameKind::credit;
    if (number_only || begins_pieces()) return 0;
    return kind == FrameKind::piece ? std::min<std::uint64_t>(message_bytes, kPieceBytes)
                                    : message_bytes;
  }
  // Whether it begins a message whose bytes come in pieces.
  bool begins_pieces() const { return kind == FrameKind::data && message_bytes > kPieceBytes; }
};

inline constexpr std::size_t kFrameHeaderBytes = 64;
using FrameHeader = std::array<std::byte, kFrameHeaderBytes>;

FrameHeader encode(const Frame& frame);

// Checks everything that can be checked without knowing what was asked for: magic, kind, limits of
// sizes, numbers of dtype, operation, collective and stage. The bytes may come from anyone.
Result<Frame> decode(const FrameHeader& header);

}  // namespace stretto::transport
