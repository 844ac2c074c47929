// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/clock_offset.h"

#include <algorithm>
#include <array>

#include "stretto/communicator/all_gather_value.h"

namespace stretto {
namespace {

// The narrowest bounds of this many barriers count. Most bounds are wider, because a thread had to
// wake up.
constexpr std::size_t kBarriers = 30;

// Times of a barrier by the rank's own clock.
struct Passage {
  Duration entered;
  Duration left;
};
using Passages = std::array<Passage, kBarriers>;

// Each rank enters a barrier before any other rank leaves it, which bounds the offset.
ClockOffset offset_of(const Passages& rank, const Passages& root) {
  Duration least = Duration::min();
  Duration most = Duration::max();
  for (std::size_t i = 0; i < kBarriers; ++i) {
    least = std::max(least, root[i].entered - rank[i].left);
    most = std::min(most, root[i].left - rank[i].entered);
  }
  return {.offset = least + (most - least) / 2, .uncertainty = (most - least + Duration(1)) / 2};
}

}  // namespace

std::vector<ClockOffset> measure_clock_offsets(Communicator& comm,
                                               const std::optional<Duration>& timeout) {
  Passages own;
  for (Passage& passage : own) {
    passage.entered = Clock::now().time_since_epoch();
    comm.barrier({.timeout = timeout}).wait();
    passage.left = Clock::now().time_since_epoch();
  }
  const auto passages = communicator::all_gather_value(comm, own, timeout);
  std::vector<ClockOffset> offsets(passages.size());
  for (std::size_t r = 1; r < passages.size(); ++r) {
    offsets[r] = offset_of(passages[r], passages.front());
  }
  return offsets;
}

}  // namespace stretto
