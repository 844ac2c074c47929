// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/verify/expression.h"

#include <functional>

#include <fmt/core.h>

#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {

Expression ExpressionPool::leaf(Rank rank, ChunkIndex chunk) {
  return intern({Kind::leaf, chunk, rank.value(), 0});
}

Expression ExpressionPool::combined(Expression left, Expression right) {
  return intern({Kind::combined, chunk_of(left), left, right});
}

Expression ExpressionPool::finished(Expression value) {
  return intern({Kind::finished, chunk_of(value), value, 0});
}

Expression ExpressionPool::tree(std::span<const Expression> values) {
  if (values.size() == 1) return values.front();
  const Split split = split_of(0, static_cast<std::int32_t>(values.size()));
  const Expression left = tree(values.first(split.middle));
  return combined(left, tree(values.subspan(split.middle)));
}

std::vector<Rank> ExpressionPool::ranks(Expression value) const {
  std::vector<Rank> found;
  std::vector<Expression> open = {value};
  while (!open.empty()) {
    const Node& node = nodes_[open.back()];
    open.pop_back();
    if (node.kind == Kind::leaf) {
      found.emplace_back(node.left);
      continue;
    }
    if (node.kind == Kind::combined) open.push_back(node.right);
    open.push_back(node.left);
  }
  return found;
}

std::string ExpressionPool::text(Expression value) const {
  const Node& node = nodes_[value];
  if (node.kind == Kind::leaf) return fmt::format("{}", node.left);
  if (node.kind == Kind::finished) return text(node.left);
  const std::string left = text(node.left);
  const std::string right = text(node.right);
  const bool numbers_touch = left.back() != ')' && right.front() != '(';
  return fmt::format("({}{}{})", left, numbers_touch ? " " : "", right);
}

Expression ExpressionPool::intern(const Node& node) {
  const auto [entry, is_new] = numbers_.try_emplace(node, static_cast<Expression>(nodes_.size()));
  if (is_new) nodes_.push_back(node);
  return entry->second;
}

std::size_t ExpressionPool::Hash::operator()(const Node& node) const {
  const auto high = static_cast<std::uint64_t>(node.left) << 32;
  const auto low = static_cast<std::uint64_t>(static_cast<std::uint32_t>(node.right));
  const auto tag =
      static_cast<std::uint64_t>(node.chunk.value()) * 4 + static_cast<std::uint64_t>(node.kind);
  return std::hash<std::uint64_t>()(((high | low) ^ (tag << 20)) * 0x9e3779b97f4a7c15u >> 16);
}

}  // namespace stretto::schedule
