// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <bit>

#include "stretto/schedule/builder.h"

namespace stretto::schedule {
namespace {

// Tree t carries chunk t.
constexpr int kTrees = 2;

// Members of a tree are numbered from 1. The number 0 means that there is no member.
constexpr int kNobody = 0;

// The neighbours of a place in the in-order tree over places 1 to `count`. Odd places are leaves.
// Below a place whose largest power-of-two divisor is 2^k lie the places at most 2^k - 1 away from
// it.
struct Node {
  int parent = kNobody;
  int left = kNobody;
  int right = kNobody;
};

int top_place(int count) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(count))); }

Node node_at(int place, int count) {
  const int reach = place & -place;
  Node node;
  if (place != top_place(count)) {
    node.parent = (place ^ reach) | (2 * reach);
    if (node.parent > count) node.parent = place ^ reach;
  }
  if (reach == 1) return node;
  node.left = place - reach / 2;
  for (int step = reach / 2; step > 0 && node.right == kNobody; step /= 2) {
    if (place + step <= count) node.right = place + step;
  }
  return node;
}

// Two trees over the same members. Each member is a leaf in at least one of them. Tree 1 is the
// mirror image of tree 0, or tree 0 shifted by one where the mirror image would have its leaves in
// the same places.
class TwinTrees {
 public:
  explicit TwinTrees(int member_count) : count_(member_count) {}

  Node node(int tree, int member) const {
    const Node places = node_at(place_of(tree, member), count_);
    return {member_at(tree, places.parent), member_at(tree, places.left),
            member_at(tree, places.right)};
  }

  int top(int tree) const { return member_at(tree, top_place(count_)); }

 private:
  int place_of(int tree, int member) const {
    if (tree == 0) return member;
    if (count_ % 2 == 0) return count_ + 1 - member;
    return member == 1 ? count_ : member - 1;
  }

  int member_at(int tree, int place) const {
    if (tree == 0 || place == kNobody) return place;
    if (count_ % 2 == 0) return count_ + 1 - place;
    return place % count_ + 1;
  }

  int count_;
};

}  // namespace

// Double binary tree broadcast: each half of the buffer goes down its own tree, from the root,
// which is above the tops of both. The members are all other ranks; member m is the m-th rank after
// the root.
void double_binary_tree_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(kTrees);
  const int n = shape.rank_count;
  const TwinTrees trees(n - 1);
  const auto rank_of = [&](int member) { return Rank((shape.root.value() + member) % n); };
  const int self = (shape.rank.value() - shape.root.value() + n) % n;
  for (int tree = 0; tree < kTrees; ++tree) {
    const ChunkIndex chunk = tree;
    if (shape.rank == shape.root) {
      if (n > 1) schedule.send(input(chunk), rank_of(trees.top(tree)));
      schedule.copy(input(chunk), output(chunk));
      continue;
    }
    const Node node = trees.node(tree, self);
    schedule.recv(node.parent == kNobody ? shape.root : rank_of(node.parent), output(chunk));
    for (const int child : {node.left, node.right}) {
      if (child != kNobody) schedule.send(output(chunk), rank_of(child));
    }
  }
}

}  // namespace stretto::schedule
