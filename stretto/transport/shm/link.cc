// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/shm/link.h"

namespace stretto::transport::shm {

void ChannelDoorbell::service() {
  while (std::optional<Channel::Received> received = channel_->receive()) {
    memory_->receive(peer_, std::move(*received));
  }
}

}  // namespace stretto::transport::shm
