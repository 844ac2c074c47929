// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <bit>
#include <vector>

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

  bool is_leaf(int tree, int member) const { return place_of(tree, member) % 2 == 1; }

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

// Adds the steps of one rank on the trees. Either all ranks are members, or all but the root, which
// is then above the tops of both trees.
class TreeSteps {
 public:
  TreeSteps(ScheduleBuilder& schedule, const Shape& shape, bool has_root)
      : schedule_(schedule),
        shape_(shape),
        has_root_(has_root),
        base_(has_root ? shape.root.value() : shape.rank_count - 1),
        self_(member_of(shape.rank)),
        trees_(has_root ? shape.rank_count - 1 : shape.rank_count) {}

  // Partial values climb to the top, or on to the root above it, where the result becomes whole.
  void climb(int tree) {
    const ChunkIndex chunk = tree;
    if (is_root()) {
      if (shape_.rank_count == 1) return reduce_whole({input(chunk)}, chunk);
      const Slot arrived = receive_from(tree, trees_.top(tree));
      return reduce_whole({input(chunk), arrived}, chunk);
    }
    const Node node = trees_.node(tree, self_);
    std::vector<Slot> values;
    if (node.left != kNobody) values.push_back(receive_from(tree, node.left));
    values.push_back(input(chunk));
    if (node.right != kNobody) values.push_back(receive_from(tree, node.right));
    if (node.parent == kNobody && !has_root_) return reduce_whole(values, chunk);
    const Rank above = node.parent == kNobody ? shape_.root : rank_of(node.parent);
    if (values.size() == 1) return schedule_.send(values.front(), above);
    const Slot sum = schedule_.unused_partial(chunk);
    schedule_.reduce(values, {sum});
    schedule_.send(sum, above);
  }

  // The input of the root, or the output of the top, goes down to the output of every member.
  void descend(int tree) {
    const ChunkIndex chunk = tree;
    if (is_root()) {
      if (shape_.rank_count > 1) schedule_.send(input(chunk), rank_of(trees_.top(tree)));
      schedule_.copy(input(chunk), output(chunk));
      return;
    }
    const Node node = trees_.node(tree, self_);
    if (node.parent != kNobody) {
      schedule_.recv(rank_of(node.parent), output(chunk));
    } else if (has_root_) {
      schedule_.recv(shape_.root, output(chunk));
    }
    for (const int child : {node.left, node.right}) {
      if (child != kNobody) schedule_.send(output(chunk), rank_of(child));
    }
  }

 private:
  bool is_root() const { return has_root_ && shape_.rank == shape_.root; }

  int member_of(Rank rank) const {
    return (rank.value() - base_ + shape_.rank_count - 1) % shape_.rank_count + 1;
  }
  Rank rank_of(int member) const { return (base_ + member) % shape_.rank_count; }

  Slot receive_from(int tree, int child) {
    const bool leaf = trees_.is_leaf(tree, child);
    const Slot arrived = leaf ? schedule_.unused_raw(tree) : schedule_.unused_partial(tree);
    schedule_.recv(rank_of(child), arrived);
    return arrived;
  }

  void reduce_whole(const std::vector<Slot>& values, ChunkIndex chunk) {
    schedule_.reduce(values, {output(chunk)}).completes();
  }

  ScheduleBuilder& schedule_;
  const Shape& shape_;
  bool has_root_;
  int base_;  // Member m is the m-th rank after the rank base_.
  int self_;
  TwinTrees trees_;
};

}  // namespace

// Double binary tree all-reduce: half of the buffer goes up and down one tree, the other half
// another.
void double_binary_tree_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(kTrees);
  TreeSteps steps(schedule, shape, /*has_root=*/false);
  for (int tree = 0; tree < kTrees; ++tree) steps.climb(tree);
  for (int tree = 0; tree < kTrees; ++tree) steps.descend(tree);
}

// Double binary tree reduce: partial values climb two trees over all ranks but the root.
void double_binary_tree_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(kTrees);
  TreeSteps steps(schedule, shape, /*has_root=*/true);
  for (int tree = 0; tree < kTrees; ++tree) steps.climb(tree);
}

// Double binary tree broadcast: each half of the buffer goes down its own tree.
void double_binary_tree_broadcast(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(kTrees);
  TreeSteps steps(schedule, shape, /*has_root=*/true);
  for (int tree = 0; tree < kTrees; ++tree) steps.descend(tree);
}

}  // namespace stretto::schedule
