// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/clock.h"
#include "stretto/transport/link.h"
#include "stretto/transport/tcp/connection_state.h"

namespace stretto::transport::tcp {

// Decides when the network to a peer, or the peer's host, is to be given up: when nothing that was
// sent has been acknowledged for about `limit`. What the peer's process does is of no concern,
// since its kernel acknowledges: a process that is stopped for minutes stays within reach.
//
// The time during which nobody looks, because this process is stopped itself, counts as one look:
// silence is what has been watched. Not thread safe.
class FailureDetector {
 public:
  // A limit of zero: nothing is ever given up.
  explicit FailureDetector(Duration limit) : limit_(limit) {}

  // How often a connection that carries nothing is given something to acknowledge.
  Duration sign_interval() const { return limit_ / 10; }
  // Whether it is time for another look.
  bool due(TimePoint now) const;
  Link::Contact look(TimePoint now, const ConnectionState& state);
  Duration silence() const { return silence_; }
  // Whether it may find, and whether it has found, that the peer is to be given up.
  bool gives_up() const { return limit_ > Duration::zero(); }
  bool has_given_up() const { return gives_up() && silence_ >= limit_ - sign_interval(); }

 private:
  Duration limit_;
  TimePoint looked_at_{};
  std::uint64_t acknowledged_bytes_ = 0;
  Duration silence_{};
};

}  // namespace stretto::transport::tcp
