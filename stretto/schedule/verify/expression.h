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

// The value of a slot in a symbolic execution: the input of a rank, a combination of two values, or
// a finished value (divided, if the operation is a mean). Equal expressions have equal numbers
// within one pool, so two values of any size are compared by comparing two numbers.
using Expression = std::int32_t;
inline constexpr Expression kEmpty = -1;

class ExpressionPool {
 public:
  Expression leaf(Rank rank, ChunkIndex chunk);
  // `left` and `right` must be values of the same chunk.
  Expression combined(Expression left, Expression right);
  Expression finished(Expression value);
  // Combines the values in the canonical tree. There must be at least one.
  Expression tree(std::span<const Expression> values);

  bool is_finished(Expression value) const { return nodes_[value].kind == Kind::finished; }
  ChunkIndex chunk_of(Expression value) const { return nodes_[value].chunk; }
  // The ranks whose inputs `value` combines, from left to right.
  std::vector<Rank> ranks(Expression value) const;
  // "((0 1)(2 3))": the ranks, with brackets where values were combined.
  std::string text(Expression value) const;

 private:
  enum class Kind : std::uint8_t { leaf, combined, finished };
  struct Node {
    Kind kind;
    ChunkIndex chunk;
    std::int32_t left;  // Of a leaf: the rank. Of a finished value: its operand.
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
