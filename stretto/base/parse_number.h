// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace stretto {

// Removes the number at the beginning of `text` and returns it. Returns nothing if there is none or
// if Number cannot hold it.
template <class Number>
std::optional<Number> take_number(std::string_view& text) {
  Number number{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  return number;
}

// Returns the number that the whole text consists of, or nothing.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  const std::optional<Number> number = take_number<Number>(text);
  return text.empty() ? number : std::nullopt;
}

}  // namespace stretto
