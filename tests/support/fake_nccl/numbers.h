// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "stretto/base/half.h"
#include "stretto/nccl/interface.h"

// What the double of NCCL computes with: see fake.h.
namespace stretto::fake_nccl {

using nccl::Type;

inline std::size_t bytes_of(Type type) {
  constexpr std::array<std::size_t, 10> kBytes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kBytes[static_cast<std::size_t>(type)];
}

template <class T>
double read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  if constexpr (std::is_class_v<T>)
    return static_cast<double>(static_cast<float>(value));
  else
    return static_cast<double>(value);
}
template <class T>
void write(std::byte* at, double value) {
  T narrow;
  if constexpr (std::is_class_v<T>)
    narrow = T(static_cast<float>(value));
  else
    narrow = static_cast<T>(value);
  std::memcpy(at, &narrow, sizeof(T));
}

template <class Visitor>
auto with_type(Type type, const Visitor& visitor) {
  switch (type) {
    case Type::i8:
      return visitor(std::int8_t());
    case Type::u8:
      return visitor(std::uint8_t());
    case Type::i32:
      return visitor(std::int32_t());
    case Type::u32:
      return visitor(std::uint32_t());
    case Type::i64:
      return visitor(std::int64_t());
    case Type::u64:
      return visitor(std::uint64_t());
    case Type::f16:
      return visitor(Half(0.0f));
    case Type::bf16:
      return visitor(BFloat16(0.0f));
    case Type::f32:
      return visitor(float());
    default:
      return visitor(double());
  }
}

}  // namespace stretto::fake_nccl
