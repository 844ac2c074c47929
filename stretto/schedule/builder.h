// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "stretto/schedule/algorithms.h"
#include "stretto/schedule/schedule.h"

namespace stretto::schedule {

inline Slot input(ChunkIndex chunk) { return {Buffer::input, chunk.value(), chunk}; }
inline Slot output(ChunkIndex chunk) { return {Buffer::output, chunk.value(), chunk}; }
inline Slot raw(std::int32_t index, ChunkIndex chunk) { return {Buffer::raw, index, chunk}; }
inline Slot partial(std::int32_t index, ChunkIndex chunk) {
  return {Buffer::partial, index, chunk};
}

// The rank `distance` places after the shape's own rank in the ring of ranks 0 to n-1. `distance`
// may be negative.
Rank neighbour(const Shape& shape, int distance);

// The chunk that `rank` owns in collectives in which every rank owns one chunk.
inline ChunkIndex shard_of(Rank rank) { return rank.value(); }

// The chunk of an all_to_all that goes from one rank to another.
inline ChunkIndex parcel(const Shape& shape, Rank from, Rank to) {
  return from.value() * shape.rank_count + to.value();
}

// Collects the steps of one rank, numbers the messages to and from each peer, and counts the
// scratch slots. It does not check whether the steps make sense; verify() does.
//
//   ScheduleBuilder schedule(shape, {.algorithm = "pair", .collective = Collective::all_reduce});
//   schedule.send(input(0), peer);
//   schedule.recv(peer, raw(0, 0));
//   schedule.reduce({input(0), raw(0, 0)}, {output(0)}).completes();
//   return std::move(schedule).build();
class ScheduleBuilder {
 public:
  struct Options {
    std::string_view algorithm;  // A string with static storage duration.
    Collective collective = Collective::barrier;
    Access access = Access::messages;
    Order order = Order::none;
    std::int32_t chunk_count = 1;
  };
  // The step that a call has just added. Valid until the next step is added.
  class Added {
   public:
    explicit Added(Step& step) : step_(step) {}
    // The result is whole after this step.
    void completes(bool whole = true) { step_.completes = whole; }
    // Sets Step::takes.
    Added takes(bool takes = true) {
      step_.takes = takes;
      return *this;
    }

   private:
    Step& step_;
  };

  ScheduleBuilder(const Shape& shape, const Options& options);

  // Sets the number of chunks. Only for collectives that do not fix it.
  void cut_into(std::int32_t chunks) { schedule_.chunk_count = chunks; }

  void send(Slot slot, Rank to);
  void recv(Rank from, Slot slot);
  // Messages without a slot.
  void send_signal(Rank to);
  void recv_signal(Rank from);
  // Functions that take a Slot mean a slot of the shape's rank.
  Added reduce(const std::vector<Slot>& sources, const std::vector<Slot>& targets);
  Added reduce(const std::vector<Place>& sources, const std::vector<Place>& targets);
  void copy(Slot source, Slot target);
  Added copy(Place source, Slot target);
  void copy(Slot source, Place target);
  void sync();

  // A scratch slot that no step has used.
  Slot unused_raw(ChunkIndex chunk) const { return raw(schedule_.raw_slots, chunk); }
  Slot unused_partial(ChunkIndex chunk) const { return partial(schedule_.partial_slots, chunk); }

  // Shares the raw slots [0, count) with the team. Must be called before any raw slot is used.
  // Where all ranks are one team, all raw slots are shared without a call.
  void share_raw(std::int32_t count) { schedule_.raw_slots = schedule_.shared_slots = count; }

  Schedule build() &&;

 private:
  Place own(Slot slot) const { return {schedule_.rank, slot}; }
  std::vector<Place> own(const std::vector<Slot>& slots) const;
  Step& add(StepKind kind, const std::vector<Place>& sources, const std::vector<Place>& targets);
  void add_send(Rank to, const std::vector<Place>& sources);
  void add_recv(Rank from, const std::vector<Place>& targets);
  void add_place(const Place& place);

  Schedule schedule_;
  std::vector<std::int32_t> sent_;      // Messages so far, per peer.
  std::vector<std::int32_t> received_;  // Messages so far, per peer.
};

}  // namespace stretto::schedule
