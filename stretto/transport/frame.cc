// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/frame.h"

#include <bit>
#include <cstring>

namespace stretto::transport {
namespace {

static_assert(std::endian::native == std::endian::little,
              "frames are little endian in memory and on the wire");

// "STR1": so that a reader that has lost its place in the stream notices at the next frame.
constexpr std::uint32_t kMagic = 0x31525453;

struct WireHeader {
  std::uint32_t magic;
  std::uint32_t kind;
  std::uint64_t group;
  std::uint32_t sequence;
  std::uint32_t segment;
  std::uint32_t message;
  std::uint32_t reserved;
  std::uint64_t message_bytes;
  OperationDescriptor operation;
};
static_assert(sizeof(WireHeader) == kFrameHeaderBytes);

Status check_size(FrameKind kind, std::uint64_t bytes) {
  const bool fits = [&] {
    switch (kind) {
      case FrameKind::message:
        return bytes <= kEagerBytes;
      case FrameKind::announce:
      case FrameKind::clear:
      case FrameKind::data:
      case FrameKind::piece:
        return bytes < (std::uint64_t{1} << 48);
      case FrameKind::abort:
        return bytes <= kAbortTextBytes;
      case FrameKind::report:
        return bytes <= kReportTextBytes;
      case FrameKind::agreement:
        return bytes <= kAgreementBytes;
      case FrameKind::goodbye:
      case FrameKind::farewell:
      case FrameKind::inquiry:
        return bytes == 0;
      case FrameKind::credit:
        return true;
    }
    return false;
  }();
  if (fits) return {};
  return status_of(StatusCode::protocol, "a frame of kind {} claims {} bytes",
                   static_cast<int>(kind), bytes);
}

}  // namespace

FrameHeader encode(const Frame& frame) {
  const WireHeader wire{.magic = kMagic,
                        .kind = static_cast<std::uint32_t>(frame.kind),
                        .group = frame.key.group,
                        .sequence = frame.key.sequence,
                        .segment = frame.key.segment,
                        .message = frame.key.message,
                        .reserved = 0,
                        .message_bytes = frame.message_bytes,
                        .operation = frame.operation};
  FrameHeader header;
  std::memcpy(header.data(), &wire, sizeof(wire));
  return header;
}

Result<Frame> decode(const FrameHeader& header) {
  WireHeader wire;
  std::memcpy(&wire, header.data(), sizeof(wire));
  if (wire.magic != kMagic) {
    return status_of(StatusCode::protocol, "a frame begins with {:#010x}, not with \"STR1\"",
                     wire.magic);
  }
  if (wire.kind < 1 || wire.kind > kFrameKindCount) {
    return status_of(StatusCode::protocol, "a frame is of unknown kind {}", wire.kind);
  }
  if (wire.reserved != 0) {
    return status_of(StatusCode::protocol, "a frame has {:#x} in its reserved field",
                     wire.reserved);
  }
  const auto kind = static_cast<FrameKind>(wire.kind);
  STRETTO_RETURN_IF_ERROR(check_size(kind, wire.message_bytes));
  if (kind == FrameKind::abort && wire.message > static_cast<std::uint32_t>(GroupStage::aborted)) {
    return status_of(StatusCode::protocol, "a group is abandoned in stage {}, which does not exist",
                     wire.message);
  }
  // Read as numbers, since a value outside an enumeration must not become one.
  std::array<std::uint8_t, sizeof(OperationDescriptor)> raw;
  std::memcpy(raw.data(), &wire.operation, sizeof(raw));
  if (raw[0] >= kCollectiveCount || raw[1] >= kReduceOpCount || !dtype_from_wire(raw[2])) {
    return status_of(StatusCode::protocol, "a frame names operation {}.{}.{}, which does not exist",
                     raw[0], raw[1], raw[2]);
  }
  return Frame{.kind = kind,
               .key = {.group = wire.group,
                       .sequence = wire.sequence,
                       .segment = wire.segment,
                       .message = wire.message},
               .message_bytes = wire.message_bytes,
               .operation = wire.operation};
}

}  // namespace stretto::transport
