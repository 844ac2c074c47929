// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/transport/ring_link.h"
#include "stretto/transport/shm/channel.h"
#include "stretto/transport/shm/memory.h"

namespace stretto::transport::shm {

// Wakes a rank of this host through the Unix socket between the two, which also carries the files
// of regions and ends when the peer does.
class ChannelDoorbell : public Doorbell {
 public:
  ChannelDoorbell(Rank peer, std::shared_ptr<Channel> channel, std::shared_ptr<ShmMemory> memory)
      : peer_(peer), channel_(std::move(channel)), memory_(std::move(memory)) {}

  void ring() override { channel_->ring(); }
  int descriptor() const override { return channel_->descriptor(); }
  void service() override;
  bool closed() const override { return channel_->closed(); }
  void close() override { channel_->shut_down(); }

 private:
  Rank peer_;
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<ShmMemory> memory_;
};

}  // namespace stretto::transport::shm
