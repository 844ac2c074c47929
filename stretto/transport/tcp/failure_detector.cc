// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/tcp/failure_detector.h"

#include <algorithm>

namespace stretto::transport::tcp {
namespace {

// Note [three clocks]
//
// TCP itself gives a connection up after a quarter of an hour, and its own means do not tell death
// from rest: keepalive is not sent while data is under way, and TCP_USER_TIMEOUT ends a connection
// whose peer is alive and has had no room for that long. So this looks at what the kernel knows:
//
// * Where the peer has room, what is in flight, or could not leave this host, must be acknowledged.
//   Hearing something from the peer is not enough: where packets are lost one way only, the peer
//   repeats what it has sent, and each repetition looks like an acknowledgement of old data. That
//   tells this from a host that is gone.
// * Where the peer has no room (its process is stopped or busy), its kernel must answer probes. The
//   pauses between these may grow to two minutes, so only a probe without an answer counts.
// * Where nothing is under way, nothing is known; then the link is asked for a small frame.

// Longer than the pauses between two looks of a process that runs.
constexpr Duration kLookMax = std::chrono::seconds(1);

bool acknowledgement_due(const ConnectionState& state) {
  if (state.window_open) return state.in_flight || state.unsent;
  if (!state.in_flight) return state.probe_unanswered;
  // The peer has taken its room back and dropped what was on its way: that is sent again instead of
  // a probe.
  return state.since_acknowledgement > 2 * state.retransmission_pause;
}

}  // namespace

bool FailureDetector::due(TimePoint now) const {
  return gives_up() && now - looked_at_ >= limit_ / 20;
}

Link::Contact FailureDetector::look(TimePoint now, const ConnectionState& state) {
  const bool first = looked_at_ == TimePoint{};
  const bool progress = first || state.acknowledged_bytes != acknowledged_bytes_;
  const Duration elapsed = std::min(now - looked_at_, std::max(kLookMax, sign_interval()));
  silence_ = progress ? Duration::zero() : silence_ + elapsed;
  if (!acknowledgement_due(state)) silence_ = std::min(silence_, sign_interval());
  looked_at_ = now;
  acknowledged_bytes_ = state.acknowledged_bytes;
  const bool idle = !state.in_flight && !state.unsent;
  // A look may come late, and the limit is what users wait at most.
  return {.silence = silence_,
          .wants_sign = idle && silence_ >= sign_interval(),
          .lost = has_given_up(),
          .heard = state.since_acknowledgement < silence_ / 2};
}

}  // namespace stretto::transport::tcp
