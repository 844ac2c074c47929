// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <string>

namespace stretto {

// A text of somebody else, fit for a log, an exception and a terminal: what is not printable ASCII
// becomes '?', or a space if it is one of the common kinds of white space.
inline std::string printable(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace stretto
