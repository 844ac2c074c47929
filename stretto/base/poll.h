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

// Whether the descriptor has something to read, or has failed, at this moment. Returns false if a
// signal interrupts the call.
inline bool is_readable(int descriptor) {
  pollfd waiting{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, 0) > 0;
}

// Whether the peer of a socket has closed or shut down its end, even if there are still bytes to
// read.
inline bool is_hung_up(int socket) {
  pollfd waiting{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&waiting, 1, 0) > 0;
}

// The timeout for poll() and epoll_wait(). Rounded up, so that a wait does not end just before its
// deadline. At most an hour, so that it fits into an int.
inline int poll_milliseconds(Duration nap) {
  const auto wait = std::min<Duration>(nap, std::chrono::hours(1));
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
}

// Makes an epoll set report these events of a descriptor from now on, with `tag`.
inline Status watch(int set, int descriptor, std::uint32_t events, std::uint64_t tag,
                    int operation = EPOLL_CTL_ADD) {
  epoll_event event{.events = events, .data = {.u64 = tag}};
  if (::epoll_ctl(set, operation, descriptor, &event) == 0) return {};
  return system_status("epoll_ctl");
}

}  // namespace stretto
