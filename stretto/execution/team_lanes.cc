// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/team_lanes.h"

#include <algorithm>

namespace stretto::execution {

void TeamLanes::use_lanes(std::size_t count) {
  lane_count_ = count;
  first_ = next_;
  for (Lane& lane : lanes_) lane.runs_before = lane.runs_ended;
}

// The record of two runs ago is overwritten. Nobody reads it any more: all have reached the first
// sync of the run in between, hence ended the one of that record (see schedule::Schedule).
void TeamLanes::begin(std::uint64_t turn, const Call& call) {
  auto& record = window_of(membership_->rank).lanes[lane_of(turn)].records[set_of(turn)];
  record = {.operation = call.operation, .sequence = call.sequence};
}

void TeamLanes::reach_sync(std::uint64_t turn) {
  Lane& lane = lanes_[lane_of(turn)];
  ++lane.syncs;
  // Release: whoever sees the count sees the record and the slots that this rank has written, and
  // what this rank has read of others before is over.
  window_of(membership_->rank)
      .lanes[lane_of(turn)]
      .syncs.store(lane.syncs, std::memory_order_release);
  for (const Rank member : windows_->team) {
    if (member != membership_->rank) transport_->notify(membership_->job_rank(member));
  }
}

bool TeamLanes::sync_is_complete(std::uint64_t turn) const {
  const std::uint64_t syncs = lanes_[lane_of(turn)].syncs;
  return std::ranges::all_of(windows_->team, [&](Rank member) {
    // Acquire: pairs with the release above; this rank may now read what that one wrote.
    return window_of(member).lanes[lane_of(turn)].syncs.load(std::memory_order_acquire) >= syncs;
  });
}

Status TeamLanes::agree(std::uint64_t turn, const Call& call) const {
  for (const Rank member : windows_->team) {
    const auto& record = window_of(member).lanes[lane_of(turn)].records[set_of(turn)];
    if (record.operation == call.operation && record.sequence == call.sequence) continue;
    return transport::mismatch_status(
        {membership_->job_rank(member), record.operation, record.sequence},
        {membership_->job_rank(membership_->rank), call.operation, call.sequence});
  }
  return {};
}

void TeamLanes::append_late(std::uint64_t turn, std::vector<Rank>& ranks) const {
  const std::uint64_t syncs = lanes_[lane_of(turn)].syncs;
  for (const Rank member : windows_->team) {
    const auto& lane = window_of(member).lanes[lane_of(turn)];
    if (lane.syncs.load(std::memory_order_relaxed) < syncs) ranks.push_back(member);
  }
}

}  // namespace stretto::execution
