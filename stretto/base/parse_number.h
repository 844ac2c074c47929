// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace stretto {

// The number that is the whole of a text; nothing if it is none, or none that the type can hold.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

}  // namespace stretto
