// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <memory>

#include "stretto/base/file_descriptor.h"
#include "stretto/transport/ring_link.h"

namespace stretto::transport::loopback {

// What the ranks of one process share about each rank: its bell, and whether it is gone.
struct Bell {
  FileDescriptor event;
  std::atomic<bool> closed{false};

  void ring();
};

// Rings another rank's bell through its eventfd.
class EventDoorbell : public Doorbell {
 public:
  // A rank has one bell but many doorbells: only the one that `watches` gives it to the endpoint.
  EventDoorbell(std::shared_ptr<Bell> own, std::shared_ptr<Bell> peer, bool watches)
      : own_(std::move(own)), peer_(std::move(peer)), watches_(watches) {}
  ~EventDoorbell() override;

  void ring() override { peer_->ring(); }
  int descriptor() const override { return watches_ ? own_->event.get() : -1; }
  void service() override;
  bool closed() const override { return peer_->closed.load(std::memory_order_acquire); }

 private:
  std::shared_ptr<Bell> own_;
  std::shared_ptr<Bell> peer_;
  bool watches_;
};

}  // namespace stretto::transport::loopback
