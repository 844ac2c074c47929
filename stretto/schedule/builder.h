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

// The rank `distance` places after the shape's own, round the ring. Distances may be negative.
Rank neighbour(const Shape& shape, int distance);

// The chunk that `rank` owns where every rank owns one.
inline ChunkIndex shard_of(Rank rank) { return rank.value(); }

// The chunk of an all_to_all that goes from one rank to another.
inline ChunkIndex parcel(const Shape& shape, Rank from, Rank to) {
  return from.value() * shape.rank_count + to.value();
}

// Collects the steps of one rank. It numbers the messages to and from each peer, counts the scratch
// slots, and nothing else: whether the steps make sense is for verify() to say.
//
//   ScheduleBuilder schedule(shape, {.algorithm = "pair", .collective = Collective::all_reduce});
//   schedule.send(input(0), peer);
//   schedule.recv(peer, raw(0, 0));
//   schedule.reduce({input(0), raw(0, 0)}, {output(0)}).completes();
//   return std::move(schedule).build();
class ScheduleBuilder {
 public:
  struct Options {
    std::string_view algorithm;  // With static storage.
    Collective collective = Collective::barrier;
    Access access = Access::messages;
    Order order = Order::none;
    std::int32_t chunk_count = 1;
  };
  // The step that a call has just added. Valid until the next one is added.
  class Added {
   public:
    explicit Added(Step& step) : step_(step) {}
    // The result is whole after this step.
    void completes(bool whole = true) { step_.completes = whole; }
    // See Step.
    Added takes(bool takes = true) {
      step_.takes = takes;
      return *this;
    }

   private:
    Step& step_;
  };

  ScheduleBuilder(const Shape& shape, const Options& options);

  // Where the algorithm is free to choose the number of chunks.
  void cut_into(std::int32_t chunks) { schedule_.chunk_count = chunks; }

  void send(Slot slot, Rank to);
  void recv(Rank from, Slot slot);
  // Messages without a slot.
  void send_signal(Rank to);
  void recv_signal(Rank from);
  // Slots are the shape's own rank's.
  Added reduce(const std::vector<Slot>& sources, const std::vector<Slot>& targets);
  Added reduce(const std::vector<Place>& sources, const std::vector<Place>& targets);
  void copy(Slot source, Slot target);
  Added copy(Place source, Slot target);
  void copy(Slot source, Place target);
  void sync();

  // A scratch slot that no step has used.
  Slot unused_raw(ChunkIndex chunk) const { return raw(schedule_.raw_slots, chunk); }
  Slot unused_partial(ChunkIndex chunk) const { return partial(schedule_.partial_slots, chunk); }

  // The raw slots before `count` are shared with the team. Before any raw slot is used. Where all
  // ranks are one team, all raw slots are shared anyway.
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
