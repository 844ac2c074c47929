// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace stretto {

// Integers in the byte order of messages: least significant byte first, on any machine. `at` needs
// no alignment and must have room for sizeof(T) bytes.
template <class T>
void store_little_endian(std::byte* at, T value) {
  const auto bits = static_cast<std::uint64_t>(static_cast<std::make_unsigned_t<T>>(value));
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(bits >> (8 * i));
}

template <class T>
T load_little_endian(const std::byte* at) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bits |= std::to_integer<std::uint64_t>(at[i]) << (8 * i);
  }
  return static_cast<T>(static_cast<std::make_unsigned_t<T>>(bits));
}

// The same in a text: at its end, and in the bytes from `at` on, which must be there.
template <class T>
void append_little_endian(std::string& text, T value) {
  const std::size_t at = text.size();
  text.resize(at + sizeof(T));
  store_little_endian(reinterpret_cast<std::byte*>(text.data()) + at, value);
}

template <class T>
T load_little_endian(std::string_view text, std::size_t at = 0) {
  return load_little_endian<T>(reinterpret_cast<const std::byte*>(text.data()) + at);
}

}  // namespace stretto
