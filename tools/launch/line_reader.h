// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <string>

#include "stretto/base/would_block.h"

namespace stretto::launch {

// Reads lines from a non-blocking file descriptor.
class LineReader {
 public:
  // Reads all that can be read now. False at the end of the stream.
  bool fill(int fd) {
    std::array<char, 16 * 1024> bytes;
    while (true) {
      const ssize_t count = ::read(fd, bytes.data(), bytes.size());
      if (count <= 0) return count < 0 && would_block(errno);
      text_.append(bytes.data(), static_cast<std::size_t>(count));
    }
  }
  // Returns the next line, without its line end; empty if none is complete.
  std::optional<std::string> next() {
    const std::size_t end = text_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string line = text_.substr(0, end);
    text_.erase(0, end + 1);
    return line;
  }

 private:
  std::string text_;
};

}  // namespace stretto::launch
