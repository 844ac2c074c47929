// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <iterator>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>

#include <torch/torch.h>

// Finds the tensors in arguments and results of forward(): a tensor, a container (of libtorch,
// too), a pair or tuple, an optional, or any of these inside of another.
namespace stretto::ddp {

// What a range-based for takes. std::ranges takes less: not c10::Dict, because of its iterators.
template <class Value>
concept Container = requires(Value& value) {
  std::begin(value) != std::end(value);
  *std::begin(value);
};
template <Container Value>
using PartOf = decltype(*std::begin(std::declval<Value&>()));

// A proxy that converts to the element, as the iterators of c10::List return it.
template <class Part, class Iterator>
concept StandsForElement = !std::is_same_v<Part, std::iter_value_t<Iterator>> &&
                           std::is_convertible_v<Part, const std::iter_value_t<Iterator>&>;

// Calls `function` with each tensor in `value` that it takes: one that changes tensors takes no
// constant ones.
template <class Value, class Function>
void for_each_tensor(Value& value, const Function& function) {
  using Plain = std::remove_const_t<Value>;
  if constexpr (std::is_same_v<Plain, torch::Tensor>) {
    if constexpr (std::is_invocable_v<const Function&, Value&>) function(value);
  } else if constexpr (Container<Value>) {
    using Part = std::remove_cvref_t<PartOf<Value>>;
    using Iterator = decltype(std::begin(value));
    if constexpr (StandsForElement<Part, Iterator>) {
      for (auto&& part : value) {
        const std::iter_value_t<Iterator>& whole = part;
        for_each_tensor(whole, function);
      }
    } else if constexpr (!std::is_same_v<Part, Plain>) {  // A path's elements are paths.
      for (auto&& part : value) for_each_tensor(part, function);
    }
  } else if constexpr (requires { value.key(), value.value(); }) {  // Of a libtorch dictionary.
    auto&& part = value.value();
    for_each_tensor(part, function);
  } else if constexpr (requires { std::tuple_size<Plain>::value; }) {
    std::apply([&](auto&... part) { (for_each_tensor(part, function), ...); }, value);
  } else if constexpr (requires { value.has_value(), *value; }) {
    if (value.has_value()) for_each_tensor(*value, function);
  }
}

template <class Value>
constexpr bool owns_tensors();
template <class Tuple, std::size_t... index>
constexpr bool any_owns_tensors(std::index_sequence<index...>) {
  return (owns_tensors<std::tuple_element_t<index, Tuple>>() || ...);
}
// Whether a copy of a value has tensors of its own, which can be replaced: not if the value is a
// view, or if its elements are constant.
template <class Value>
constexpr bool owns_tensors() {
  if constexpr (std::is_same_v<Value, torch::Tensor>) {
    return true;
  } else if constexpr (std::is_reference_v<Value> || std::is_const_v<Value>) {
    return false;
  } else if constexpr (Container<Value>) {
    using Part = std::remove_reference_t<PartOf<Value>>;
    if constexpr (std::ranges::view<Value> || std::is_same_v<std::remove_const_t<Part>, Value>) {
      return false;
    } else {
      return owns_tensors<Part>();
    }
  } else if constexpr (requires(Value & value) { value.key(), value.value(); }) {
    return owns_tensors<std::remove_reference_t<decltype(std::declval<Value&>().value())>>();
  } else if constexpr (requires { std::tuple_size<Value>::value; }) {
    return any_owns_tensors<Value>(std::make_index_sequence<std::tuple_size_v<Value>>());
  } else if constexpr (requires(Value & value) { value.has_value(), *value; }) {
    return owns_tensors<std::remove_reference_t<decltype(*std::declval<Value&>())>>();
  } else {
    return false;
  }
}

}  // namespace stretto::ddp
