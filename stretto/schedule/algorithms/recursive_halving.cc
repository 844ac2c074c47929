// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <bit>
#include <cstddef>
#include <vector>

#include "stretto/schedule/builder.h"
#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {
namespace {

int largest_power_of_two(int n) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
}

// The rank that holds a chunk's partial value of the subtree over ranks [begin, end). With p the
// largest power of two up to the number of these ranks, the first p ranks take turns, chunk by
// chunk. At a node with sides of equal size, the owners in both sides are at the same position of
// their side, and one of them stays the owner. Where the right side is smaller, the owner in the
// left side stays the owner.
Rank owner_in(int begin, int end, int chunk) {
  return begin + chunk % largest_power_of_two(end - begin);
}

// The slots of a chunk's values on this rank. When a chunk uses a slot again, the slot's earlier
// value has been reduced already, so sharing the slot causes no extra wait.
class ScratchMap {
 public:
  explicit ScratchMap(int chunk_count)
      : raw_(static_cast<std::size_t>(chunk_count), kNone), own_(raw_), other_(raw_) {}

  // Slots for the input of another rank, for this rank's partial value, and for that of another
  // rank.
  Slot input_of_other(int chunk) { return raw(number(raw_, raws_, chunk), chunk); }
  Slot own_partial(int chunk) { return partial(number(own_, partials_, chunk), chunk); }
  Slot other_partial(int chunk) { return partial(number(other_, partials_, chunk), chunk); }

 private:
  static constexpr int kNone = -1;

  static int number(std::vector<int>& numbers, int& count, int chunk) {
    int& found = numbers[static_cast<std::size_t>(chunk)];
    if (found == kNone) found = count++;
    return found;
  }

  std::vector<int> raw_;  // Per chunk, the number of its slot.
  std::vector<int> own_;
  std::vector<int> other_;
  int raws_ = 0;
  int partials_ = 0;
};

// Adds the steps up the canonical tree and down again. All ranks below a node work on it at the
// same time.
class Halving {
 public:
  Halving(ScheduleBuilder& schedule, const Shape& shape, int chunk_count, bool to_owners)
      : schedule_(schedule),
        self_(shape.rank),
        rank_count_(shape.rank_count),
        chunk_count_(chunk_count),
        to_owners_(to_owners),
        scratch_(chunk_count) {}

  void up() {
    if (rank_count_ == 1) return schedule_.reduce({input(0)}, {output(0)}).completes();
    for (const Split& split : splits_upwards(self_.value(), rank_count_)) {
      for (int c = 0; c < chunk_count_; ++c) hand_over(split, c);
      for (int c = 0; c < chunk_count_; ++c) take_over(split, c);
    }
  }

  void down() {
    for (const Split& split : splits_above(self_.value(), rank_count_)) {
      for (int c = 0; c < chunk_count_; ++c) {
        const Owners owners = owners_of(split, c);
        const Rank other = owners.merged == owners.left ? owners.right : owners.left;
        if (self_ == owners.merged) schedule_.send(output(c), other);
        if (self_ == other) schedule_.recv(owners.merged, output(c));
      }
    }
  }

 private:
  // The owners of a chunk on the two sides of a node, and in the whole node.
  struct Owners {
    Rank left;
    Rank right;
    Rank merged;
  };

  bool is_top(const Split& split) const { return split.end - split.begin == rank_count_; }

  Owners owners_of(const Split& split, int c) const {
    const bool settles = to_owners_ && is_top(split);
    return {owner_in(split.begin, split.middle, c), owner_in(split.middle, split.end, c),
            settles ? Rank(c) : owner_in(split.begin, split.end, c)};
  }

  // The slot of the value that this rank holds as the owner of chunk `c` in ranks [begin, end).
  Slot held(int begin, int end, int c) {
    return end - begin == 1 ? input(c) : scratch_.own_partial(c);
  }

  void hand_over(const Split& split, int c) {
    const Owners owners = owners_of(split, c);
    if (self_ == owners.merged) return;
    if (self_ == owners.left) schedule_.send(held(split.begin, split.middle, c), owners.merged);
    if (self_ == owners.right) schedule_.send(held(split.middle, split.end, c), owners.merged);
  }

  void take_over(const Split& split, int c) {
    const Owners owners = owners_of(split, c);
    if (self_ != owners.merged) return;
    Slot left = held(split.begin, split.middle, c);
    Slot right = held(split.middle, split.end, c);
    if (self_ != owners.left) {
      // Both values arrive only where this rank owns neither side; the left value may then use the
      // slot of the rank's own value.
      left = split.middle - split.begin == 1 ? scratch_.input_of_other(c)
             : self_ == owners.right         ? scratch_.other_partial(c)
                                             : scratch_.own_partial(c);
      schedule_.recv(owners.left, left);
    }
    if (self_ != owners.right) {
      right =
          split.end - split.middle == 1 ? scratch_.input_of_other(c) : scratch_.other_partial(c);
      schedule_.recv(owners.right, right);
    }
    const bool whole = is_top(split);
    schedule_.reduce({left, right}, {whole ? output(c) : scratch_.own_partial(c)}).completes(whole);
  }

  ScheduleBuilder& schedule_;
  Rank self_;
  int rank_count_;
  int chunk_count_;
  bool to_owners_;  // Whether rank c must own chunk c in the end.
  ScratchMap scratch_;
};

}  // namespace

// Recursive halving and doubling: in each step on the way up, partners in the canonical tree divide
// the chunks that they hold between them.
void recursive_halving_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  const int chunk_count = largest_power_of_two(shape.rank_count);
  schedule.cut_into(chunk_count);
  Halving halving(schedule, shape, chunk_count, /*to_owners=*/false);
  halving.up();
  halving.down();
}

// Recursive halving reduce-scatter: only the way up of recursive_halving_all_reduce.
void recursive_halving_reduce_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  Halving(schedule, shape, shape.rank_count, /*to_owners=*/true).up();
}

}  // namespace stretto::schedule
