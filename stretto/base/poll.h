// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstdint>

#include "stretto/base/clock.h"
#include "stretto/base/status.h"

namespace stretto {

// Whether the descriptor has something to read, or has failed, at this moment. A signal that
// interrupts the question tells nothing, and counts as no.
inline bool is_readable(int descriptor) {
  pollfd waiting{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, 0) > 0;
}

// Whether the peer of a socket has closed it or shut it down, whatever is still to be read.
inline bool is_hung_up(int socket) {
  pollfd waiting{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&waiting, 1, 0) > 0;
}

// What poll() and epoll_wait() take. Rounded up, so that a wait does not end just before its
// deadline; at most an hour, so that it fits.
inline int poll_milliseconds(Duration nap) {
  const auto wait = std::min<Duration>(nap, std::chrono::hours(1));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
}

// Has an epoll set tell of these events of a descriptor from now on, by `tag`.
inline Status watch(int set, int descriptor, std::uint32_t events, std::uint64_t tag,
                    int operation = EPOLL_CTL_ADD) {
  epoll_event event{.events = events, .data = {.u64 = tag}};
  if (::epoll_ctl(set, operation, descriptor, &event) == 0) return {};
  return system_status("epoll_ctl");
}

}  // namespace stretto
