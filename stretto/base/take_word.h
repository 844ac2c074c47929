// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <string_view>

namespace stretto {

// Removes the text up to the next `end`, and that character, from `text`. Returns it without the
// character.
inline std::string_view take_word(std::string_view& text, char end) {
  const std::string_view word = text.substr(0, text.find(end));
  text.remove_prefix(std::min(text.size(), word.size() + 1));
  return word;
}

}  // namespace stretto
