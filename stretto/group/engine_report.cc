// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What a rank says about itself: to others, which wait for it, and to whoever watches the job.

#include "stretto/group/engine.h"

#include <new>

namespace stretto::group {

std::string Engine::describe_state(Rank from, std::uint64_t group, std::uint32_t sequence,
                                   const OperationDescriptor& operation) {
  Client* const found = find(group);
  if (found == nullptr) return describe_absence(groups_, activity_);
  found->asked_about(from, sequence, operation);
  return found->describe_state(sequence, activity_);
}

void Engine::state_reported(Rank peer, std::uint64_t group, std::uint32_t sequence,
                            const std::string& text) {
  if (Client* const found = find(group)) found->state_reported(peer, sequence, text);
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
  const Client* last = nullptr;  // Whose operation ended last, unless one is in flight.
  const Client* busy = nullptr;
  for (const Client* group : groups_) {
    state.collectives += group->collectives_begun();
    if (busy == nullptr && group->is_busy()) busy = group;
    if (last == nullptr || group->last_ended_at() > last->last_ended_at()) last = group;
  }
  if (const Client* told = busy != nullptr ? busy : last) state.doing = told->state_text(activity_);
  return state;
}

}  // namespace stretto::group
