// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/tcp/failure_detector.h"

#include <algorithm>
#include <utility>

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
//   repeats what it has sent, and each repetition looks like an acknowledgement of old data. But it
//   tells this case from a host that is gone.
// * Where the peer has no room (its process is stopped or busy), its kernel must answer probes. The
//   pauses between these may grow to two minutes, so only a probe without an answer counts.
// * Where nothing is under way, nothing is known; then the link is asked for a small frame.

// Longer than the pauses between two looks of a process that runs.
constexpr Duration kLookMax = std::chrono::seconds(1);
// Longer than a frame is on its way where all is well.
constexpr Duration kWaitsMin = std::chrono::seconds(1);
constexpr Duration kLately = std::chrono::seconds(2);

bool acknowledgement_due(const ConnectionState& state) {
  if (state.window_open) return state.in_flight || state.unsent;
  if (!state.in_flight) return state.probe_unanswered;
  // The peer has closed its window and dropped what was on its way: the kernel sends that again
  // instead of a probe.
  return state.since_acknowledgement > 2 * state.retransmission_pause;
}

}  // namespace

bool FailureDetector::due(TimePoint now) const {
  // More often towards the limit, so that it is noticed when it has passed, not half a second
  // later.
  const Duration pause = contact_.silence < limit_ / 2 ? limit_ / 20 : limit_ / 100;
  return gives_up() && (!last_ || now - last_->at >= pause);
}

Link::Contact FailureDetector::look(TimePoint now, const ConnectionState& state) {
  const bool progress = !last_ || state.acknowledged_bytes != last_->acknowledged_bytes;
  if (progress) {
    // The silence began with the last acknowledgement. If this process has not looked for long, the
    // time since then says nothing about the peer.
    contact_.silence =
        last_ ? std::min({now - last_->at, state.since_acknowledgement, sign_interval()})
              : Duration::zero();
  } else {
    contact_.silence += std::min(now - last_->at, std::max(kLookMax, sign_interval()));
  }
  if (!acknowledgement_due(state)) contact_.silence = std::min(contact_.silence, sign_interval());
  // Gives up a little before the limit: a look may come late, and users wait for the limit at most.
  contact_.lost = has_given_up();
  contact_.silent = gives_up() && contact_.silence > 2 * sign_interval();
  if (!last_ || state.received_packets != last_->received_packets) heard_at_ = now;
  contact_.heard = now - heard_at_ < contact_.silence / 2;
  measure(now, state, progress);
  Link::Contact found = contact_;
  const bool idle = !state.in_flight && !state.unsent;
  found.wants_sign = idle && contact_.silence >= sign_interval();
  return found;
}

// Bytes also wait if the peer reads too slowly. But then it has no room for them most of the time,
// though each look may find a little, and its kernel has acknowledged what it had room for.
void FailureDetector::measure(TimePoint at, const ConnectionState& state, bool progress) {
  const bool first = !last_;
  const Seen now{at, state.acknowledged_bytes, state.received_bytes, state.received_packets,
                 state.without_room};
  if (first) past_ = next_past_ = last_.emplace(now);
  const bool has_room = 2 * (now.without_room - last_->without_room) <= at - last_->at;
  const bool waits =
      state.waiting_bytes > 0 && state.window_open && (has_room || (state.in_flight && !progress));
  if (first || !waits) moving_at_ = at;
  contact_.waiting_bytes = at - moving_at_ >= kWaitsMin ? state.waiting_bytes : 0;
  const double time = std::max(seconds(at - past_.at), 1e-3);
  const auto rate = [&](std::uint64_t Seen::*bytes) {
    return static_cast<double>(now.*bytes - past_.*bytes) / time;
  };
  contact_.sent_rate = rate(&Seen::acknowledged_bytes);
  contact_.received_rate = rate(&Seen::received_bytes);
  if (at - next_past_.at >= kLately) past_ = std::exchange(next_past_, now);
  last_ = now;
}

}  // namespace stretto::transport::tcp
