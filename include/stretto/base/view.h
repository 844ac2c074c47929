// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <concepts>
#include <cstddef>
#include <ranges>
#include <span>
#include <type_traits>

#include "stretto/base/dtype.h"

namespace stretto {

using ByteSpan = std::span<std::byte>;
using ConstByteSpan = std::span<const std::byte>;

// `count` elements of `dtype` that the view does not own, aligned for their type. `data` may be
// null only if `count` is 0.
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

// To be specialised for types of other libraries that refer to memory, such as a tensor, with a
// `static View view(const T&)` that returns their memory or throws InvalidArgument. Temporaries are
// not accepted, because they may be the only owner of the memory.
template <class T>
struct ViewOf;
template <class B>
concept HasView = std::is_lvalue_reference_v<B> && requires(B buffer) {
  { ViewOf<std::remove_cvref_t<B>>::view(buffer) } -> std::same_as<View>;
};

// InputBuffer is what an operation can read: a view, a type with a ViewOf, or contiguous elements
// of a type that has a dtype, in anything that outlives the call (a vector, array, span or
// registered buffer, but no temporary that owns its elements). std::vector<bool> is not contiguous.
template <class B>
concept Elements = std::ranges::contiguous_range<B> && std::ranges::sized_range<B> &&
    std::ranges::borrowed_range<B> && requires {
  DTypeOf<std::remove_cv_t<std::ranges::range_value_t<B>>>::value;
};
template <class B>
concept InputBuffer =
    std::convertible_to<std::remove_cvref_t<B>, ConstView> || HasView<B> || Elements<B>;
// What an operation can write: the same, with elements that are not const.
template <class B>
concept OutputBuffer = std::same_as<std::remove_cvref_t<B>, View> || HasView<B> ||
    (Elements<B> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<B>>>);

template <InputBuffer B>
ConstView as_input(B&& buffer) {
  if constexpr (std::convertible_to<std::remove_cvref_t<B>, ConstView>) {
    return buffer;
  } else if constexpr (HasView<B>) {
    return ViewOf<std::remove_cvref_t<B>>::view(buffer);
  } else {
    using T = std::remove_cv_t<std::ranges::range_value_t<B>>;
    return const_view_of(std::span<const T>(std::ranges::data(buffer), std::ranges::size(buffer)));
  }
}
template <OutputBuffer B>
View as_output(B&& buffer) {
  if constexpr (std::same_as<std::remove_cvref_t<B>, View>) {
    return buffer;
  } else if constexpr (HasView<B>) {
    return ViewOf<std::remove_cvref_t<B>>::view(buffer);
  } else {
    using T = std::ranges::range_value_t<B>;
    return view_of(std::span<T>(std::ranges::data(buffer), std::ranges::size(buffer)));
  }
}

}  // namespace stretto
