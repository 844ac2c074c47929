// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "stretto/nccl/interface.h"
#include "tests/support/fake_nccl/numbers.h"

// What ranks call of the double of NCCL, and tell each other: see fake.h.
namespace stretto::fake_nccl {

using Bytes = std::vector<std::byte>;
struct Message {
  std::string what;  // Of which call it is, to be equal on both sides.
  Bytes bytes;
};

// Ranks with one id.
struct World {
  int arrived = 0;
  std::map<std::pair<int, int>, std::deque<Message>> messages;  // From, to.
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
  double factor = 1;  // Of an operation that has been made.
  bool is_registered = false;
  std::string what() const {
    // The two ends of a message have different names.
    const int number =
        kind == Kind::receive ? static_cast<int>(Kind::send) : static_cast<int>(kind);
    return std::to_string(number) + " of " + std::to_string(count) + " of type " +
           std::to_string(static_cast<int>(type)) + (is_registered ? ", registered" : "");
  }
};

// Messages of a group are under way at once: what is sent must not be received into.
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
