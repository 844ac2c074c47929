// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <iosfwd>

namespace stretto {

// A number of one kind. A Rank cannot be passed where a ChunkIndex is expected, but both are
// written as plain numbers: `Rank root = 0;`.
template <class Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr Id(std::int32_t value)
      : value_(value) {}  // NOLINT: implicit so that literals read well.

  constexpr std::int32_t value() const { return value_; }
  constexpr explicit operator std::size_t() const { return static_cast<std::size_t>(value_); }

  friend constexpr auto operator<=>(Id, Id) = default;
  template <class Character>
  friend std::basic_ostream<Character>& operator<<(std::basic_ostream<Character>& stream, Id id) {
    return stream << id.value_;
  }

 private:
  std::int32_t value_ = 0;
};

// The number of a process in a group, from 0 to size - 1.
using Rank = Id<struct RankTag>;
// As the sender of a message to receive: any other rank.
inline constexpr Rank kAnyRank = -1;
// The number of a chunk in a buffer that a schedule divides.
using ChunkIndex = Id<struct ChunkTag>;

}  // namespace stretto

template <class Tag>
struct std::hash<stretto::Id<Tag>> {
  std::size_t operator()(stretto::Id<Tag> id) const noexcept {
    return std::hash<std::int32_t>()(id.value());
  }
};
