// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>

namespace stretto::codec {

// What every message begins with, as it travels; see docs/wire_format.md.
struct Header {
  static constexpr std::uint32_t kMagic = 0x00435453;  // "STC" and a zero.
  static constexpr std::uint8_t kVersion = 1;
  static constexpr std::uint8_t kStopped = 1;  // Not sent: there were infinities or NaN.

  std::uint32_t magic = kMagic;
  std::uint8_t version = kVersion;
  std::uint8_t kind = 0;
  std::uint8_t flags = 0;
  std::uint8_t zero = 0;
  std::uint32_t settings = 0;  // Hash of the codec's name.
  std::uint32_t step = 0;      // Its lower half.
  std::uint64_t count = 0;     // Elements of the vector.
  std::uint64_t values = 0;    // Values in the payload.
  std::uint64_t checksum = 0;
};
static_assert(sizeof(Header) == 40 && offsetof(Header, checksum) == 32);

const char* kind_name(std::uint8_t kind);

}  // namespace stretto::codec
