// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>

#include "stretto/base/clock.h"
#include "stretto/transport/link.h"
#include "stretto/transport/tcp/connection_state.h"

namespace stretto::transport::tcp {

// Decides when the network to a peer, or the peer's host, is to be given up: when nothing that was
// sent has been acknowledged for about `limit`. The peer's process does not matter, since its
// kernel acknowledges: a process that is stopped for minutes stays within reach. Also says how many
// bytes wait for the network, and how fast they move.
//
// Only watched time counts as silence: time between two looks, as while this process itself is
// stopped, counts for 1 s or sign_interval() at most, whichever is longer. Not thread safe.
class FailureDetector {
 public:
  // A limit of zero: nothing is ever given up.
  explicit FailureDetector(Duration limit) : limit_(limit) {}

  // How often a connection that carries nothing is given something to acknowledge.
  Duration sign_interval() const { return limit_ / 10; }
  // Whether it is time for another look.
  bool due(TimePoint now) const;
  // Takes a look. contact() returns the same until the next look, except that it never wants a
  // sign.
  Link::Contact look(TimePoint now, const ConnectionState& state);
  const Link::Contact& contact() const { return contact_; }
  // Whether peers are given up at all, and whether this one is to be.
  bool gives_up() const { return limit_ > Duration::zero(); }
  bool has_given_up() const { return gives_up() && contact_.silence >= limit_ - sign_interval(); }

 private:
  // What later looks need of an earlier one.
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
  // A look from two to four seconds ago, for the rates, and the one that replaces it.
  Seen past_;
  Seen next_past_;
  TimePoint heard_at_{};   // When a packet of the peer last came, as far as looks tell.
  TimePoint moving_at_{};  // When last nothing waited for the network.
  Link::Contact contact_;
};

}  // namespace stretto::transport::tcp
