// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "stretto/execution/execution.h"
#include "stretto/execution/window.h"
#include "stretto/transport/endpoint.h"

namespace stretto::execution {

// Where the ranks of a team meet within collectives that also send messages: a few lanes, each with
// a count of syncs and with slots that the team has mapped.
//
// The segments of all such collectives of a group take the lanes by turns, in the order in which
// the collectives have begun, which is the same on all ranks. So a turn names the same lane, and
// the same set of slots in it, on each rank of the team, and the lanes of one collective need not
// be free before the next one begins. The fewer lanes there are, the longer what they stage stays
// in the processors' caches.
//
// Not thread safe; called by whoever holds the engine's lock.
class TeamLanes {
 public:
  // All must outlive it.
  TeamLanes(const Windows& windows, const Membership& membership, transport::Endpoint& transport)
      : windows_(&windows), membership_(&membership), transport_(&transport) {}

  // From the next turn on, `count` lanes are used. All ranks call this before the same turn, each
  // while nothing of its own is in flight.
  void use_lanes(std::size_t count);
  // Takes the next `count` turns for the caller, and returns the first.
  std::uint64_t take_turns(std::uint64_t count) { return std::exchange(next_, next_ + count); }
  // Whether this rank has ended what it did in the lane of this turn.
  bool may_begin(std::uint64_t turn) const {
    return lanes_[lane_of(turn)].runs_ended == run_of(turn);
  }
  // Notes that `call` runs in the turn's lane from now on, until end().
  void begin(std::uint64_t turn, const Call& call);
  void end(std::uint64_t turn) { ++lanes_[lane_of(turn)].runs_ended; }

  // The team sees what this rank has written in shared slots before this once sync_is_complete().
  void reach_sync(std::uint64_t turn);
  bool sync_is_complete(std::uint64_t turn) const;
  // To be called after a complete sync: fails with mismatch if a rank of the team runs something
  // else in this turn.
  Status agree(std::uint64_t turn, const Call& call) const;
  // Appends the ranks of the team that have not reached the sync of this turn.
  void append_late(std::uint64_t turn, std::vector<Rank>& ranks) const;

  // Whether ranks take the cache lines of others' slots (base/take_lines.h).
  bool takes_lines() const { return windows_->takes_lines; }
  // The shared slots of a rank of the team.
  std::byte* slots(Rank member, std::uint64_t turn) const {
    return window_of(member).lane_slots(lane_of(turn), set_of(turn));
  }

 private:
  // What this rank has done in a lane.
  struct Lane {
    std::uint64_t runs_ended = 0;
    std::uint64_t runs_before = 0;  // Runs before the last use_lanes().
    std::uint64_t syncs = 0;
  };

  std::size_t lane_of(std::uint64_t turn) const { return (turn - first_) % lane_count_; }
  // How many runs the lane of this turn has had before.
  std::uint64_t run_of(std::uint64_t turn) const {
    return lanes_[lane_of(turn)].runs_before + (turn - first_) / lane_count_;
  }
  std::size_t set_of(std::uint64_t turn) const { return run_of(turn) % schedule::kScratchSets; }
  Window& window_of(Rank member) const { return *windows_->of[member]; }

  const Windows* windows_;
  const Membership* membership_;
  transport::Endpoint* transport_;
  std::array<Lane, Window::kLanes> lanes_;
  std::size_t lane_count_ = Window::kLanes;  // Lanes in use.
  std::uint64_t first_ = 0;                  // The first turn of use_lanes().
  std::uint64_t next_ = 0;
};

}  // namespace stretto::execution
