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

// Who holds a chunk's partial value of the subtree over ranks [begin, end): the ranks of the
// largest power of two in it take turns. The two owners below a node of equal sides are then
// neighbours in position, of which one stays the owner; where the right side is smaller, the left
// one does.
Rank owner_in(int begin, int end, int chunk) {
  return begin + chunk % largest_power_of_two(end - begin);
}

// Where a chunk's values lie on this rank. A chunk that comes back to a slot has been reduced there
// before, so nothing waits that would not wait anyway.
class ScratchMap {
 public:
  explicit ScratchMap(int chunk_count)
      : raw_(static_cast<std::size_t>(chunk_count), kNone), own_(raw_), other_(raw_) {}

  // Somebody's input; this rank's partial value; another's.
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

// Goes up the canonical tree and down again. All ranks of a node do the same at the same time.
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
  // Who owns a chunk on the two sides of a node, and in the whole of it.
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

  // What this rank holds of a chunk as the owner in ranks [begin, end).
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
      // Only where neither side's owner is this rank do both values arrive; the left one may then
      // lie where the rank's own would.
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
  bool to_owners_;  // Whether chunk c must end on rank c.
  ScratchMap scratch_;
};

}  // namespace

// Recursive halving and doubling: partners in the canonical tree split what they hold between them.
void recursive_halving_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  const int chunk_count = largest_power_of_two(shape.rank_count);
  schedule.cut_into(chunk_count);
  Halving halving(schedule, shape, chunk_count, /*to_owners=*/false);
  halving.up();
  halving.down();
}

// Recursive halving reduce-scatter: the way up of recursive_halving_all_reduce.
void recursive_halving_reduce_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  Halving(schedule, shape, shape.rank_count, /*to_owners=*/true).up();
}

}  // namespace stretto::schedule
