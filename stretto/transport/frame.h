// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

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
  announce = 2,  // A larger message waits for its receive. No payload; `message_bytes` is its size.
  clear = 3,     // The receive of a larger message has been posted. No payload.
  data = 4,      // A larger message, after its clear, with its bytes.
  abort = 5,     // The sender has given up on key.group. Payload: the reason (kAbortTextBytes at
                 // most); key.sequence: the status code; key.segment: the rank at fault or kNoRank.
  goodbye = 6,   // The sender leaves in good order; the end of the stream follows.
};

inline constexpr std::size_t kAbortTextBytes = 2048;
inline constexpr std::uint32_t kNoRank = 0xffffffff;

struct Frame {
  FrameKind kind = FrameKind::message;
  MessageKey key;
  std::uint64_t message_bytes = 0;
  OperationDescriptor operation;

  // How many bytes follow the header in the stream.
  std::uint64_t payload_bytes() const {
    return kind == FrameKind::announce || kind == FrameKind::clear ? 0 : message_bytes;
  }
};

inline constexpr std::size_t kFrameHeaderBytes = 64;
using FrameHeader = std::array<std::byte, kFrameHeaderBytes>;

FrameHeader encode(const Frame& frame);

// Checks everything that can be checked without knowing what was asked for: magic, kind, limits of
// sizes, numbers of dtype, operation and collective. The bytes may come from anyone.
Result<Frame> decode(const FrameHeader& header);

}  // namespace stretto::transport
