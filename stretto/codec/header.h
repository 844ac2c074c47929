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

// The header at the beginning of every message, in the layout of the message; see
// docs/internals/wire_format.md.
struct Header {
  static constexpr std::uint32_t kMagic = 0x00435453;  // "STC" and a zero.
  static constexpr std::uint8_t kVersion = 2;
  static constexpr std::uint8_t kStopped = 1;  // Values not sent: there were infinities or NaN.

  std::uint32_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t kind = 0;
  std::uint8_t flags = 0;
  std::uint8_t zero = 0;
  std::uint32_t settings = 0;  // settings_of() the codec's name ^ Position::context_hash.
  std::uint32_t step = 0;      // Lower half of the step's number.
  std::uint64_t count = 0;     // Elements of the vector.
  std::uint64_t values = 0;    // Values in the payload.
  std::uint64_t checksum = 0;
};
static_assert(sizeof(Header) == 40 && offsetof(Header, checksum) == 32);

// The properties of a message that a receiver knows in advance.
struct Expected {
  std::uint8_t kind = 0;
  const std::string& name;  // Of the codec, including its settings.
  std::size_t count = 0;
  std::uint64_t step = 0;
  std::uint32_t context_hash = 0;
};

// The hash of a codec's name.
std::uint32_t settings_of(const std::string& name);

// Adds the checksum to `header` and writes it to the beginning of `message`.
void seal(Header header, std::span<std::byte> message);

// Write and read, in the payload of a stopped message, the rank with infinities or NaN if it is not
// the sender. A payload that is too short names no rank.
void name_rank(std::optional<Rank> rank, std::span<std::byte> payload);
std::optional<Rank> named_rank(std::span<const std::byte> payload);

// Reads the header at the beginning of `bytes`. Fails with mismatch if version, codec, step or
// length of the vector differ; the text names both sides. Fails with protocol if there is no
// header.
Result<Header> read_header(std::span<const std::byte> bytes, const Expected& expected);

// Fails with protocol if fewer than `length` bytes follow the header, or if the checksum is wrong.
Status check_payload(std::span<const std::byte> bytes, const Header& header, std::size_t length);

}  // namespace stretto::codec
