// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/state_broadcast.h"
#include "stretto/torch/sparse_gradients.h"

namespace stretto {

// What a BufferHook is handed before a forward pass.
struct BufferCall {
  Communicator& communicator;
  const std::vector<ddp::NamedTensor>& buffers;  // Of this rank; to be changed in place.
  std::optional<Duration> timeout;
  // Inside join(), a rank that has data; those that have none take part with the buffers they have.
  std::optional<Rank> leader = std::nullopt;
  // What makes bytes of one rank everyone's by few messages; kept for the next call.
  reducer::StateBroadcast& broadcast;
};

// How ranks' buffers (running averages of batch normalisation, say) become equal before a forward
// pass. All ranks use the same kind. Those of this header may be used by several
// DistributedDataParallels; one that remembers things must know of which.
class BufferHook {
 public:
  virtual ~BufferHook() = default;
  // What it does, with its settings. Must be equal on all ranks.
  virtual std::string name() const = 0;
  // Collective, blocks. What it throws comes out of forward().
  virtual void run(const BufferCall& call) = 0;
};

// One rank's buffers become everyone's; inside join() the leader's.
class BuffersOfRank : public BufferHook {
 public:
  explicit BuffersOfRank(Rank root = 0) : root_(root) {}
  std::string name() const override;
  void run(const BufferCall& call) override;

 private:
  Rank root_;
};

// Floating-point and complex buffers become the mean of all ranks'; others (counters) rank 0's.
class MeanOfBuffers : public BufferHook {
 public:
  std::string name() const override { return "mean"; }
  void run(const BufferCall& call) override;
};

}  // namespace stretto
