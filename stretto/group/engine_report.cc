// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What a rank says about itself: to others, which wait for it, and to whoever watches the job.

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

// By the background thread, if it comes to it: one that waits nearly always finds itself in an
// operation.
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
  // Of groups with operations in flight, if there are any, the one whose oldest has begun last.
  GroupLiveState told;
  for (const Group* group : groups_) {
    GroupLiveState next = group->live_state(activity_);
    state.collectives += next.collectives;
    if (std::pair(next.is_busy, next.since) > std::pair(told.is_busy, told.since)) {
      told = std::move(next);
    }
  }
  state.doing = std::move(told.doing);
  // Nobody waits for what is in flight.
  if (told.is_busy && !WaitTime::is_anybody_waiting()) state.doing += "; " + in_own_code(activity_);
  return state;
}

}  // namespace stretto::group
