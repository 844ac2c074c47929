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
  clear = 3,     // The receive for an announced or a large message has been posted. No payload.
  data = 4,      // Such a message, after its clear, with its bytes. If it has more than
                 // kPieceBytes, this frame carries none; they follow in pieces.
  abort = 5,     // The sender has abandoned key.group. Payload: the reason (kAbortTextBytes at
                 // most); key.sequence: the status code; key.segment: the rank at fault or kNoRank;
                 // key.message: the GroupStage.
  goodbye = 6,   // The sender leaves in good order; the end of the stream follows.
  farewell = 7,  // The sender has destroyed its communicator of key.group. No payload; key.segment:
                 // a Farewell, which says how.
  inquiry = 8,  // Asks what the receiver is doing, as seen from operation key.sequence of key.group
                // in which the sender waits. No payload; `operation` is what the sender believes it
                // to be.
  report = 9,   // The answer to an inquiry, with its key. Payload: text (kReportTextBytes at most).
  credit = 10,  // The sender has let go of unexpected messages. No payload; `message_bytes`: the
                // cost (unexpected_cost_bytes()) of all messages that it has received, less those
                // it keeps.
  agreement = 11,  // What the sender says in round key.segment of agreement key.sequence of
                   // key.group. Payload: defined by the listener (kAgreementBytes at most).
  piece = 12,  // The next bytes, kPieceBytes at most, of the first message with this key that has
               // begun and not ended. `message_bytes` is how many are left, including these. Other
               // frames may come between the pieces of a message, but no pieces of another message.
};
inline constexpr int kFrameKindCount = 12;

inline constexpr std::size_t kAbortTextBytes = 2048;
inline constexpr std::size_t kReportTextBytes = 512;
// Four bytes per rank, for more ranks than a job has.
inline constexpr std::size_t kAgreementBytes = 1024 * 1024;
inline constexpr std::uint32_t kNoRank = 0xffffffff;
// Other frames go between the pieces of a message. This bounds how long they wait, since a frame
// that has begun to go cannot be interrupted.
inline constexpr std::size_t kPieceBytes = 1024 * 1024;

// The most that messages without a receive may cost a receiver, per peer. The sender keeps to this
// limit: beyond it, it announces messages and keeps their bytes. So a receiver can always read on,
// and hears of aborts and of the end, however much has come unexpectedly.
inline constexpr std::uint64_t kUnexpectedBytesMax = 64 * 1024 * 1024;
// Each message costs this much more than its bytes, so that the limit also bounds how many small
// ones there are.
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
  // Whether this frame begins a message whose bytes come in pieces.
  bool begins_pieces() const { return kind == FrameKind::data && message_bytes > kPieceBytes; }
};

inline constexpr std::size_t kFrameHeaderBytes = 64;
using FrameHeader = std::array<std::byte, kFrameHeaderBytes>;

FrameHeader encode(const Frame& frame);

// Checks everything that can be checked without knowing what was asked for: magic, kind, limits of
// sizes, numbers of dtype, operation, collective and stage. Fails with protocol. The bytes may come
// from anyone.
Result<Frame> decode(const FrameHeader& header);

}  // namespace stretto::transport
