// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "stretto/base/id.h"
#include "stretto/base/status.h"

namespace stretto::codec {

// What every message begins with, as it travels; see docs/internals/wire_format.md.
struct Header {
  static constexpr std::uint32_t kMagic = 0x00435453;  // "STC" and a zero.
  static constexpr std::uint8_t kVersion = 2;
  static constexpr std::uint8_t kStopped = 1;  // Not sent: there were infinities or NaN.

  std::uint32_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t kind = 0;
  std::uint8_t flags = 0;
  std::uint8_t zero = 0;
  std::uint32_t settings = 0;  // Hash of the codec's name, ^ Position::context_hash.
  std::uint32_t step = 0;      // Its lower half.
  std::uint64_t count = 0;     // Elements of the vector.
  std::uint64_t values = 0;    // Values in the payload.
  std::uint64_t checksum = 0;
};
static_assert(sizeof(Header) == 40 && offsetof(Header, checksum) == 32);

// What a receiver knows of a message before it comes.
struct Expected {
  std::uint8_t kind = 0;
  const std::string& name;  // Of the codec, with its settings.
  std::size_t count = 0;
  std::uint64_t step = 0;
  std::uint32_t context_hash = 0;
};

// The hash of a codec's name.
std::uint32_t settings_of(const std::string& name);

// Writes the header, completed by the checksum, to the beginning of a message.
void seal(Header header, std::span<std::byte> message);

// In the payload of a message that has stopped: the rank that it has stopped for, if it was not
// the sender itself. Payloads without room for that name none.
void name_rank(std::optional<Rank> rank, std::span<std::byte> payload);
std::optional<Rank> named_rank(std::span<const std::byte> payload);

// The header that `bytes` begin with. Fails with mismatch, naming both sides, if it is of another
// version, codec, step or length of vector; with protocol if it is none.
Result<Header> read_header(std::span<const std::byte> bytes, const Expected& expected);

// Fails with protocol if fewer than `length` bytes follow the header, or if their checksum is
// wrong.
Status check_payload(std::span<const std::byte> bytes, const Header& header, std::size_t length);

}  // namespace stretto::codec
