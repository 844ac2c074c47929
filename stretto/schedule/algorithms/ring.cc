// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstddef>
#include <vector>

#include "stretto/schedule/algorithms/all.h"
#include "stretto/schedule/builder.h"
#include "stretto/schedule/host_layout.h"

namespace stretto::schedule {
namespace {

// A ring that visits the hosts one after the other, so that it enters and leaves each of them once.
// If ranks are numbered host by host, or all on one host, it is the ring of ranks 0 to n-1.
class Ring {
 public:
  explicit Ring(const Shape& shape) {
    const HostLayout layout(shape);
    for (int host = 0; host < layout.host_count(); ++host) {
      const std::vector<Rank>& members = layout.members(host);
      if (host == layout.host_of(shape.rank)) own_ = size() + layout.position_of(shape.rank);
      ranks_.insert(ranks_.end(), members.begin(), members.end());
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank next() const { return at(own_ + 1); }
  Rank previous() const { return at(own_ - 1); }
  // The own chunk of the rank `hops` places before this one: it arrives after `hops` hops of a lap.
  ChunkIndex chunk_behind(int hops) const { return shard_of(at(own_ - hops)); }

 private:
  Rank at(int place) const { return ranks_[static_cast<std::size_t>((place + size()) % size())]; }

  std::vector<Rank> ranks_;  // In the order of the ring.
  int own_ = 0;              // The place of the shape's rank among them.
};

// First lap: chunk c starts at the rank after rank c, is combined with the input of each rank that
// it passes, and is whole at rank c. Two partial slots are used: one receives while the other is
// still being sent. With one slot, every rank would wait for the next, all round the ring.
void reduce_lap(ScheduleBuilder& schedule, const Ring& ring) {
  const int n = ring.size();
  if (n == 1) return schedule.reduce({input(0)}, {output(0)}).completes();
  schedule.send(input(ring.chunk_behind(1)), ring.next());
  for (int hop = 2; hop <= n; ++hop) {
    const ChunkIndex c = ring.chunk_behind(hop);
    const Slot sum = partial(hop % 2, c);
    const Slot arrived =
        hop == 2 ? raw(0, c) : sum;  // The first hop carries a rank's input as it is.
    schedule.recv(ring.previous(), arrived);
    if (hop == n) return schedule.reduce({arrived, input(c)}, {output(c)}).completes();
    schedule.reduce({arrived, input(c)}, {sum});
    schedule.send(sum, ring.next());
  }
}

// Second lap: each rank's own chunk travels round the ring and ends at the rank before it.
void gather_lap(ScheduleBuilder& schedule, const Ring& ring, Slot own) {
  for (int hop = 1; hop < ring.size(); ++hop) {
    schedule.send(hop == 1 ? own : output(ring.chunk_behind(hop - 1)), ring.next());
    schedule.recv(ring.previous(), output(ring.chunk_behind(hop)));
  }
}

}  // namespace

// Ring all-reduce: each chunk makes two laps; the first collects, the second distributes.
void ring_all_reduce(ScheduleBuilder& schedule, const Shape& shape) {
  schedule.cut_into(shape.rank_count);
  const Ring ring(shape);
  reduce_lap(schedule, ring);
  gather_lap(schedule, ring, output(shard_of(shape.rank)));
}

// Ring reduce-scatter: the first lap of ring_all_reduce.
void ring_reduce_scatter(ScheduleBuilder& schedule, const Shape& shape) {
  reduce_lap(schedule, Ring(shape));
}

// Ring all-gather: the second lap of ring_all_reduce.
void ring_all_gather(ScheduleBuilder& schedule, const Shape& shape) {
  const ChunkIndex own = shard_of(shape.rank);
  schedule.copy(input(own), output(own));
  gather_lap(schedule, Ring(shape), input(own));
}

}  // namespace stretto::schedule
