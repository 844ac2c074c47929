// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace stretto::kernel {

// Bytes between two strips that must stay untouched, for tests. `misalignment` is counted from a
// cache line; a copy of the object keeps it.
class GuardedBytes {
 public:
  GuardedBytes(std::size_t bytes, std::size_t misalignment)
      : lines_(2 * kStripLines + (misalignment + bytes) / sizeof(Line) + 1),
        first_(kStripLines * sizeof(Line) + misalignment),
        bytes_(bytes) {
    std::memset(lines_.data(), kMark, lines_.size() * sizeof(Line));
  }

  std::byte* data() { return reinterpret_cast<std::byte*>(lines_.data()) + first_; }
  const std::byte* data() const {
    return reinterpret_cast<const std::byte*>(lines_.data()) + first_;
  }
  std::size_t size() const { return bytes_; }
  bool strips_are_untouched() const {
    const auto is_mark = [](std::byte byte) { return byte == std::byte{kMark}; };
    const std::byte* const start = data() - first_;
    const std::byte* const end = start + lines_.size() * sizeof(Line);
    return std::all_of(start, data(), is_mark) && std::all_of(data() + bytes_, end, is_mark);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static constexpr std::size_t kStripLines = 2;
  static constexpr unsigned char kMark = 0xA5;

  std::vector<Line> lines_;
  std::size_t first_;
  std::size_t bytes_;
};

}  // namespace stretto::kernel
