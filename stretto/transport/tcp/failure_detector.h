// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>

#include "stretto/base/clock.h"
#include "stretto/transport/link.h"
#include "stretto/transport/tcp/connection_state.h"

namespace stretto::transport::tcp {

// Decides when the network to a peer, or the peer's host, is to be given up: when nothing that was
// sent has been acknowledged for about `limit`. What the peer's process does is of no concern,
// since its kernel acknowledges: a process that is stopped for minutes stays within reach. Also
// says how much waits for the network, and how fast it moves.
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
  // What it has found is also what contact() says until the next look, but for a sign.
  Link::Contact look(TimePoint now, const ConnectionState& state);
  const Link::Contact& contact() const { return contact_; }
  // Whether it may find, and whether it has found, that the peer is to be given up.
  bool gives_up() const { return limit_ > Duration::zero(); }
  bool has_given_up() const { return gives_up() && contact_.silence >= limit_ - sign_interval(); }

 private:
  // What a look has seen, as far as it counts later.
  struct Seen {
    TimePoint at;
    std::uint64_t acknowledged_bytes = 0;
    std::uint64_t received_bytes = 0;
    std::uint64_t received_packets = 0;
    Duration without_room{};
  };
  void measure(TimePoint at, const ConnectionState& state, bool progress);

  Duration limit_;
  std::optional<Seen> last_;
  // Two to four seconds ago, and the one to take its place.
  Seen past_;
  Seen next_past_;
  TimePoint heard_at_{};   // When a packet of the peer came last, as looks have found.
  TimePoint moving_at_{};  // When nothing waited for the network last.
  Link::Contact contact_;
};

}  // namespace stretto::transport::tcp
