// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/algorithms/all.h"

#include <vector>

#include "stretto/schedule/builder.h"
#include "stretto/schedule/canonical_tree.h"

namespace stretto::schedule {
namespace {

// The ranks from which a rank receives and to which it sends when two subtrees meet. Where the
// right side has fewer ranks, they take turns in serving the left ranks, because each rank on the
// left needs the value of the right side.
struct Partners {
  Rank from;
  std::vector<Rank> to;
};

Partners partners_of(Rank rank, const Split& split) {
  const int self = rank.value();
  const int right_size = split.end - split.middle;
  if (self < split.middle) {
    const int place = self - split.begin;
    Partners partners{.from = split.middle + place % right_size, .to = {}};
    if (place < right_size) partners.to.push_back(split.middle + place);
    return partners;
  }
  Partners partners{.from = split.begin + (self - split.middle), .to = {}};
  for (int to = partners.from.value(); to < split.middle; to += right_size) {
    partners.to.push_back(to);
  }
  return partners;
}

}  // namespace

// Recursive doubling all-reduce: pairs combine, then pairs of pairs, along the canonical tree.
void recursive_doubling_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  if (shape.rank_count == 1) schedule.reduce({input(0)}, {output(0)}).completes();
  Slot value = input(0);
  for (const Split& split : splits_upwards(shape.rank.value(), shape.rank_count)) {
    const bool left = shape.rank < split.middle;
    const int others = left ? split.end - split.middle : split.middle - split.begin;
    const Slot arrived = others == 1 ? schedule.unused_raw(0) : schedule.unused_partial(0);
    const Partners partners = partners_of(shape.rank, split);
    for (const Rank to : partners.to) schedule.send(value, to);
    schedule.recv(partners.from, arrived);
    const bool whole = split.end - split.begin == shape.rank_count;
    const Slot combined = whole ? output(0) : schedule.unused_partial(0);
    schedule.reduce({left ? value : arrived, left ? arrived : value}, {combined}).completes(whole);
    value = combined;
  }
}

// Recursive doubling all-gather: the number of chunks that a rank holds doubles with every step.
void recursive_doubling_all_gather(ScheduleBuilder& schedule, const Shape& shape) {
  const int own = shape.rank.value();
  schedule.copy(input(own), output(own));
  for (const Split& split : splits_upwards(own, shape.rank_count)) {
    const bool left = own < split.middle;
    const Partners partners = partners_of(shape.rank, split);
    for (const Rank to : partners.to) {
      const int end = left ? split.middle : split.end;
      for (int c = left ? split.begin : split.middle; c < end; ++c) {
        schedule.send(c == own ? input(c) : output(c), to);
      }
    }
    const int end = left ? split.end : split.middle;
    for (int c = left ? split.middle : split.begin; c < end; ++c) {
      schedule.recv(partners.from, output(c));
    }
  }
}

// Dissemination barrier: after k steps a rank knows that the 2^k ranks before it have come.
void recursive_doubling_barrier(ScheduleBuilder& schedule, const Shape& shape) {
  for (int distance = 1; distance < shape.rank_count; distance *= 2) {
    schedule.send_signal(neighbour(shape, distance));
    schedule.recv_signal(neighbour(shape, -distance));
  }
}

}  // namespace stretto::schedule
