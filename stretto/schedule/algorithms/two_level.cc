// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstddef>
#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/algorithms/two_level_steps.h"

namespace stretto::schedule {
namespace {

class ByMessages final : public TwoLevel {
 public:
  using TwoLevel::TwoLevel;

 private:
  void collect_inputs() override {
    for (const int c : own_handled()) add_input(c, self_, own(input(c)));
    for (std::size_t distance = 1; distance < member_count(); ++distance) {
      const Rank to = after(distance);
      const Rank from = before(distance);
      for (const int c : handled_by(to)) {
        if (needs_input(c, self_)) schedule_.send(input(c), to);
      }
      for (const int c : own_handled()) {
        if (!needs_input(c, from)) continue;
        const Slot slot = schedule_.unused_raw(c);
        schedule_.recv(from, slot);
        add_input(c, from, own(slot));
      }
    }
  }

  std::vector<Place> result_places(int c) override { return {own(output(c))}; }

  void spread_inside(Buffer source) override {
    for (std::size_t distance = 1; distance < member_count(); ++distance) {
      for (const int c : own_handled()) schedule_.send(whole(c, source), after(distance));
      for (const int c : handled_by(before(distance))) schedule_.recv(before(distance), output(c));
    }
  }
};

}  // namespace

// Two-level all-reduce: values that can be combined inside a host cross the network as one value.
void two_level_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  two_level_all_reduce_by<ByMessages>(schedule, shape, ChunkAssignment::in_blocks(shape));
}

// Two-level reduce-scatter: the first half of two_level_all_reduce, with chunk r owned by rank r.
void two_level_reduce_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  two_level_reduce_scatter_by<ByMessages>(schedule, shape);
}

// Two-level all-gather: every chunk is sent to every host once.
void two_level_all_gather(ScheduleBuilder& schedule, const Shape& shape) {
  two_level_all_gather_by<ByMessages>(schedule, shape);
}

}  // namespace stretto::schedule
