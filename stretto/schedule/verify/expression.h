// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "stretto/base/id.h"

namespace stretto::schedule {

// What a slot holds in a symbolic execution: a rank's input, a combination of two values, or a
// finished (divided) one. Equal expressions have equal numbers within one pool, so comparing two
// values, however large, is comparing two numbers.
using Expression = std::int32_t;
inline constexpr Expression kEmpty = -1;

class ExpressionPool {
 public:
  Expression leaf(Rank rank, ChunkIndex chunk);
  // Both must be of the same chunk.
  Expression combined(Expression left, Expression right);
  Expression finished(Expression value);
  // The canonical tree over the values, of which there is at least one.
  Expression tree(std::span<const Expression> values);

  bool is_finished(Expression value) const { return nodes_[value].kind == Kind::finished; }
  ChunkIndex chunk_of(Expression value) const { return nodes_[value].chunk; }
  // Whose inputs it is made of, from left to right.
  std::vector<Rank> ranks(Expression value) const;
  // "((0 1)(2 3))": the ranks, with brackets where values were combined.
  std::string text(Expression value) const;

 private:
  enum class Kind : std::uint8_t { leaf, combined, finished };
  struct Node {
    Kind kind;
    ChunkIndex chunk;
    std::int32_t left;  // Of a leaf: the rank. Of a finished value: what was divided.
    std::int32_t right;
    friend bool operator==(const Node&, const Node&) = default;
  };
  struct Hash {
    std::size_t operator()(const Node& node) const;
  };

  Expression intern(const Node& node);

  std::vector<Node> nodes_;
  std::unordered_map<Node, Expression, Hash> numbers_;
};

}  // namespace stretto::schedule
