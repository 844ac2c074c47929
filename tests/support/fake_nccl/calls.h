// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "stretto/base/half.h"
#include "stretto/nccl/interface.h"

// The calls and messages of ranks in the double of NCCL, and its arithmetic: see fake.h.
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

using Bytes = std::vector<std::byte>;
struct Message {
  std::string what;  // Call::what(); must be equal on both sides.
  Bytes bytes;
};

// The state of all ranks that join with the same id.
struct World {
  int arrived = 0;
  std::map<std::pair<int, int>, std::deque<Message>> messages;  // Key: from, to.
};

enum class Kind { all_reduce, reduce, reduce_scatter, broadcast, all_gather, send, receive };
struct Call {
  Kind kind = Kind::send;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;
  Type type = Type::u8;
  nccl::RedOp op = 0;
  int peer = 0;
  double factor = 1;  // The factor of an operation that a rank has created.
  bool is_registered = false;
  std::string what() const {
    // A send and its receive are of different kinds, but must have the same number.
    const int number =
        kind == Kind::receive ? static_cast<int>(Kind::send) : static_cast<int>(kind);
    return std::to_string(number) + " of " + std::to_string(count) + " of type " +
           std::to_string(static_cast<int>(type)) + (is_registered ? ", registered" : "");
  }
};

// Whether a send and a receive overlap in memory: messages of a group are under way at the same
// time, so no buffer that is sent may be received into.
inline bool overlap(const Call& sent, const Call& received) {
  if (sent.kind != Kind::send || received.kind != Kind::receive) return false;
  const auto* const from = static_cast<const std::byte*>(sent.from);
  const auto* const to = static_cast<const std::byte*>(received.to);
  return from < to + received.count * bytes_of(received.type) &&
         to < from + sent.count * bytes_of(sent.type);
}

inline double combine(nccl::RedOp op, double a, double b) {
  if (op == nccl::kProduct) return a * b;
  if (op == nccl::kMax) return std::max(a, b);
  if (op == nccl::kMin) return std::min(a, b);
  return a + b;
}

}  // namespace stretto::fake_nccl
