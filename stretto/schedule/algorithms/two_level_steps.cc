// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/two_level_steps.h"

#include <utility>

#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {
namespace {

// Whether `left` and `right` are the two sides of the canonical tree over all their values.
bool are_sides(const std::vector<Place>& left, const std::vector<Place>& right) {
  const auto count = static_cast<int>(left.size() + right.size());
  return std::cmp_equal(split_of(0, count).middle, left.size());
}

}  // namespace

// Handlers combine the inputs of each subtree that lies on their host. The only owner of a chunk
// does not: it reduces all values at once later.
void TwoLevel::reduce_subtrees() {
  for (const int c : own_handled()) {
    if (!assignment_.is_owned_elsewhere(host_, c)) continue;
    const std::vector<Subtree>& subtrees = subtrees_on(host_);
    arrived_[static_cast<std::size_t>(c)].resize(is_owned_here(c) ? alone_.size()
                                                                  : subtrees.size());
    for (std::size_t i = 0; i < subtrees.size(); ++i) {
      const Subtree& subtree = subtrees[i];
      if (subtree.single()) continue;
      const auto first =
          inputs_[static_cast<std::size_t>(c)].begin() + layout_.position_of(subtree.begin);
      const Slot sum = schedule_.unused_partial(c);
      schedule_.reduce(std::vector<Place>(first, first + (subtree.end - subtree.begin)), {own(sum)})
          .takes();
      sum_of(c, i) = own(sum);
    }
  }
}

// Between hosts: each host sends the owner of a chunk on another host the values of its subtrees.
void TwoLevel::exchange_subtrees() {
  for (int distance = 1; distance < layout_.host_count(); ++distance) {
    const int to_host = host_after(distance);
    for (const int c : owned_on(to_host)) send_subtrees(c, to_host);
    const int from_host = host_before(distance);
    for (const int c : own_handled()) {
      if (is_owned_here(c)) receive_subtrees(c, from_host);
    }
  }
}

void TwoLevel::send_subtrees(int c, int to_host) {
  const bool handles = assignment_.handler(host_, c) == self_;
  if (!handles && !is_alone(self_)) return;
  const Rank owner = assignment_.handler(to_host, c);
  const std::vector<Subtree>& subtrees = subtrees_on(host_);
  for (std::size_t i = 0; i < subtrees.size(); ++i) {
    if (subtrees[i].single()) {
      if (self_ == subtrees[i].begin) schedule_.send(input(c), owner);
    } else if (handles) {
      schedule_.send(sum_of(c, i).slot, owner);
    }
  }
}

void TwoLevel::receive_subtrees(int c, int from_host) {
  auto& arrived = arrived_[static_cast<std::size_t>(c)];
  arrived.resize(alone_.size());
  for (const Subtree& subtree : subtrees_on(from_host)) {
    const Rank from = subtree.single() ? Rank(subtree.begin) : assignment_.handler(from_host, c);
    const Slot slot = subtree.single() ? schedule_.unused_raw(c) : schedule_.unused_partial(c);
    schedule_.recv(from, slot);
    arrived[static_cast<std::size_t>(subtree.begin)] = own(slot);
  }
}

// The operands for a reduction of a chunk's ranks [begin, end) at its owner. The canonical tree
// over these operands is the canonical tree over the ranks. The list has as many operands as that
// allows; other values are first combined into partial values.
std::vector<Place> TwoLevel::operands(int c, int begin, int end) {
  const auto chunk = static_cast<std::size_t>(c);
  const bool is_own = layout_.host_of(begin) == host_;
  const bool has_sums = end - begin > 1 && assignment_.is_owned_elsewhere(host_, c);
  if (layout_.together(begin, end) && (!is_own || has_sums)) {
    return {arrived_[chunk][static_cast<std::size_t>(begin)]};
  }
  if (end - begin == 1) {
    return {inputs_[chunk][static_cast<std::size_t>(layout_.position_of(begin))]};
  }
  const Split split = split_of(begin, end);
  std::vector<Place> left = operands(c, split.begin, split.middle);
  std::vector<Place> right = operands(c, split.middle, split.end);
  if (!are_sides(left, right)) right = {combined(c, right)};
  if (!are_sides(left, right)) left = {combined(c, left)};
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

Place TwoLevel::combined(int c, const std::vector<Place>& values) {
  if (values.size() == 1) return values.front();
  const Place sum = own(schedule_.unused_partial(c));
  schedule_.reduce(values, {sum}).takes();
  return sum;
}

void TwoLevel::spread_to_handlers(Buffer source) {
  for (int distance = 1; distance < layout_.host_count(); ++distance) {
    const int to_host = host_after(distance);
    for (const int c : own_handled()) {
      if (!is_owned_here(c) || assignment_.is_owned_on(to_host, c)) continue;
      schedule_.send(Slot{source, c, c}, assignment_.handler(to_host, c));
    }
    const int from_host = host_before(distance);
    for (const int c : own_handled()) {
      if (is_owned_here(c) || !assignment_.is_owned_on(from_host, c)) continue;
      schedule_.recv(assignment_.handler(from_host, c), output(c));
    }
  }
}

}  // namespace stretto::schedule
