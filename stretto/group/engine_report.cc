// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What a rank reports about itself to ranks that wait for it and to the watchers of the job.

#include "stretto/group/engine.h"

#include <new>
#include <utility>

#include "stretto/group/group.h"

namespace stretto::group {

std::string Engine::describe_state(Rank from, std::uint64_t group, std::uint32_t sequence,
                                   const OperationDescriptor& operation) {
  Group* const found = find(group);
  if (found == nullptr) return describe_absence(groups_, activity_);
  found->asked_about(from, sequence, operation);
  return found->describe_state(sequence, activity_);
}

void Engine::state_reported(Rank peer, std::uint64_t group, std::uint32_t sequence,
                            const std::string& text) {
  if (Group* const found = find(group)) found->state_reported(peer, sequence, text);
}

// Called by the background thread if possible: a thread that waits would nearly always report that
// it is in an operation.
void Engine::report_live_state(TimePoint now, Duration least) {
  if (!options_.report_live_state || now - live_state_reported_at_ < least) return;
  live_state_reported_at_ = now;
  try {
    options_.report_live_state(live_state());
  } catch (const std::bad_alloc&) {
    // The job goes on, and the next report may find some memory.
  }
}

LiveState Engine::live_state() const {
  LiveState state{.waited = wait_time_.total()};
  // Tells of the group whose oldest operation in flight began last, if any group has one in flight.
  GroupLiveState told;
  for (const Group* group : groups_) {
    GroupLiveState next = group->live_state(activity_);
    state.collectives += next.collectives;
    if (std::pair(next.is_busy, next.since) > std::pair(told.is_busy, told.since)) {
      told = std::move(next);
    }
  }
  state.doing = std::move(told.doing);
  // No thread waits for the operation in flight.
  if (told.is_busy && !WaitTime::is_anybody_waiting()) state.doing += "; " + in_own_code(activity_);
  return state;
}

}  // namespace stretto::group
