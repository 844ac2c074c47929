// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace stretto {

// The element of `names` at the index that is the number of `value`; `unknown` if there is none.
template <class Enum>
std::string_view name_in(std::initializer_list<std::string_view> names, Enum value,
                         std::string_view unknown) {
  const auto number = static_cast<std::size_t>(value);
  return number < names.size() ? names.begin()[number] : unknown;
}

}  // namespace stretto
