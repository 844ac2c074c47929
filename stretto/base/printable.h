// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <string>

namespace stretto {

// Makes a foreign text safe for a log, an exception or a terminal: newline and tab become a space,
// and every other character that is not printable ASCII becomes '?'.
inline std::string printable(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace stretto
