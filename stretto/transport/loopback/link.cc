// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/loopback/link.h"

#include <unistd.h>

namespace stretto::transport::loopback {

void Bell::ring() {
  const std::uint64_t one = 1;
  (void)!::write(event.get(), &one, sizeof(one));
}

EventDoorbell::~EventDoorbell() {
  own_->closed.store(true, std::memory_order_release);
  peer_->ring();
}

void EventDoorbell::service() {
  std::uint64_t count = 0;
  (void)!::read(own_->event.get(), &count, sizeof(count));
}

}  // namespace stretto::transport::loopback
