// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/transport/endpoint.h"
#include "stretto/transport/ring_link.h"

namespace stretto::transport::loopback {

struct WorldOptions {
  int ranks = 1;
  // Whether ranks reach each other's registered memory; without, only messages.
  bool shared_memory = true;
  // Per rank, a number: only ranks with the same one reach each other's memory. Empty: all do.
  std::vector<std::int32_t> hosts = {};
  // Where set, what stands between a rank and its link to a peer: a test that counts, say.
  std::function<std::unique_ptr<Link>(Rank self, Rank peer, std::unique_ptr<Link> link)> wrap = {};
};

// The connected endpoints of ranks that are threads of this process: a job without processes, for
// tests, and for programs that want one rank per thread. Endpoint r belongs to the thread of rank
// r.
Result<std::vector<std::unique_ptr<Endpoint>>> make_world(const WorldOptions& options);

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
