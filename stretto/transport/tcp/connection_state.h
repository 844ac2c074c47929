// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <optional>

#include "stretto/base/clock.h"

namespace stretto::transport::tcp {

// What the kernel of this host knows of a connection, mostly of its direction from here to the
// peer. The peer's kernel acknowledges bytes, whatever its process does or does not do.
struct ConnectionState {
  std::uint64_t acknowledged_bytes = 0;  // Of all that has ever been sent.
  std::uint64_t waiting_bytes = 0;       // Written and not acknowledged, sent or not.
  std::uint64_t received_bytes = 0;      // Since the beginning.
  std::uint64_t received_packets = 0;    // Since the beginning, with repeated ones.
  bool in_flight = false;                // Whether something is sent and not acknowledged.
  bool unsent = false;                   // Whether something has not been sent even once.
  bool window_open = true;               // Whether the peer has room to receive.
  bool probe_unanswered = false;         // Whether it has not answered a probe for room.
  Duration without_room{};               // Total time in which the peer had no room for more.
  Duration since_acknowledgement{};      // Of any kind, also of old bytes again.
  Duration retransmission_pause{};       // Until what is in flight is sent again.
};

// None if the socket is no TCP socket or the connection has ended.
std::optional<ConnectionState> read_connection_state(int socket);

// Makes the kernel send again, or ask for room, at least once per `pause` (clamped to 1 s to 120
// s). Otherwise it doubles the pause each time, up to two minutes. Needs Linux 6.15; does nothing
// before.
void limit_retransmission_pause(int socket, Duration pause);

}  // namespace stretto::transport::tcp
