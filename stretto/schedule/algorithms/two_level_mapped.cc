// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstddef>
#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/algorithms/two_level_steps.h"

namespace stretto::schedule {
namespace {

// Raw slot c of a rank is for chunk c: for what its handler needs of this rank, or, where this rank
// is the handler, for what the others need of it.
class OnMappedMemory final : public TwoLevel {
 public:
  using TwoLevel::TwoLevel;

 private:
  static Slot stage(int c) { return raw(c, c); }
  bool is_shared() const { return member_count() > 1; }

  void collect_inputs() override {
    for (const int c : own_handled()) add_input(c, self_, own(input(c)));
    if (!is_shared()) return;
    schedule_.share_raw(assignment_.chunk_count());
    for (std::size_t distance = 1; distance < member_count(); ++distance) {
      const Rank to = after(distance);
      for (const int c : handled_by(to)) {
        if (needs_input(c, to, self_)) schedule_.copy(input(c), stage(c));
      }
    }
    schedule_.sync();
    for (std::size_t distance = 1; distance < member_count(); ++distance) {
      const Rank from = after(distance);
      for (const int c : own_handled()) {
        if (needs_input(c, self_, from)) add_input(c, from, {from, stage(c)});
      }
    }
  }

  std::vector<Place> result_places(int c) const override {
    std::vector<Place> places = {own(output(c))};
    if (is_shared()) places.push_back(own(stage(c)));
    return places;
  }

  // What an owner has reduced is staged already.
  void spread_inside(Buffer source) override {
    if (!is_shared()) return;
    if (source == Buffer::input) schedule_.share_raw(assignment_.chunk_count());
    for (const int c : own_handled()) {
      const bool is_staged = assignment_.owner(c) == self_ && source == Buffer::output;
      if (!is_staged) schedule_.copy(whole(c, source), stage(c));
    }
    schedule_.sync();
    for (std::size_t distance = 1; distance < member_count(); ++distance) {
      const Rank from = after(distance);
      for (const int c : handled_by(from)) schedule_.copy({from, stage(c)}, output(c));
    }
  }
};

}  // namespace

// Two-level all-reduce on mapped memory: as two_level, but inside hosts nothing is sent.
//
//   2 hosts:   0 1 2 | 3 4       every chunk has a handler on each host, one of whom owns it
//
//   r:  input c --> raw c of r, for every c that another rank of the host handles;     sync of
//   hosts c:  raw c of 0 and 2, input c of 1;  of 3, 4 --> partial of 4 --> 1                (a
//   message)
//       all of these --> output c and raw c of 1 --> output c and raw c of 4           (a message)
//                                                                                      sync of
//                                                                                      hosts
//   r:  raw c of the host's handler --> output c of r
//
//   steps           2 syncs and 2 messages on several hosts
//   bytes per host  as two_level
//   bytes per rank  less than 2 times the buffer read on other ranks, and as much staged
//   scratch         n raw slots and a little more, as two_level
//   order           canonical, for any layout
//   choose it for   several ranks per host that have mapped each other's memory
//   source          as two_level; inside, the one-sided form of it
Schedule two_level_mapped_all_reduce(const Shape& shape) {
  return two_level_all_reduce_by<OnMappedMemory>(shape, "two_level_mapped", Access::both);
}

// Two-level reduce-scatter on mapped memory: the first half of two_level_mapped_all_reduce, with
// chunk r owned by rank r.
//
//   steps           1 sync and 1 message on several hosts
//   bytes per host  as two_level
//   bytes per rank  less than the buffer read on other ranks, and as much staged
//   scratch         n raw slots and a little more, as two_level
//   order           canonical, for any layout
//   choose it for   several ranks per host that have mapped each other's memory
//   source          as two_level; inside, the one-sided form of it
Schedule two_level_mapped_reduce_scatter(const Shape& shape) {
  return two_level_reduce_scatter_by<OnMappedMemory>(shape, "two_level_mapped", Access::both);
}

// Two-level all-gather on mapped memory: every chunk comes to every host once, and lies there for
// all to copy.
//
//   steps           1 message and 1 sync on several hosts
//   bytes per host  as two_level
//   bytes per rank  less than the buffer read on other ranks; what it handles is staged
//   scratch         n raw slots
//   order           nothing is combined
//   choose it for   several ranks per host that have mapped each other's memory
//   source          as two_level; inside, the one-sided form of it
Schedule two_level_mapped_all_gather(const Shape& shape) {
  return two_level_all_gather_by<OnMappedMemory>(shape, "two_level_mapped", Access::both);
}

}  // namespace stretto::schedule
