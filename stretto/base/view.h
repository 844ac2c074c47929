// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "stretto/base/dtype.h"

namespace stretto {

using ByteSpan = std::span<std::byte>;
using ConstByteSpan = std::span<const std::byte>;

// `count` elements of `dtype` that somebody else owns. `data` may be null only if `count` is 0.
template <class Byte>
struct BasicView {
  Byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::u8;

  constexpr BasicView() = default;
  constexpr BasicView(Byte* first, std::size_t element_count, DType element_dtype)
      : data(first), count(element_count), dtype(element_dtype) {}
  // A view of mutable bytes is also a view of constant ones.
  template <class Other>
  requires std::is_same_v<const Other, Byte>
  constexpr BasicView(const BasicView<Other>& other)  // NOLINT: the conversion is the purpose.
      : data(other.data), count(other.count), dtype(other.dtype) {}

  std::size_t bytes() const { return count * size_bytes(dtype); }
  std::span<Byte> span() const { return {data, bytes()}; }

  // The elements from `first` on, `length` of them. Both must lie inside the view.
  BasicView slice(std::size_t first, std::size_t length) const {
    return {data + first * size_bytes(dtype), length, dtype};
  }
};

using View = BasicView<std::byte>;
using ConstView = BasicView<const std::byte>;

template <class T>
View view_of(std::span<T> elements) {
  return {reinterpret_cast<std::byte*>(elements.data()), elements.size(), dtype_of<T>};
}
template <class T>
ConstView const_view_of(std::span<const T> elements) {
  return {reinterpret_cast<const std::byte*>(elements.data()), elements.size(), dtype_of<T>};
}

}  // namespace stretto
