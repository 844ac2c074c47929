// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"
#include "stretto/torch/sparse_gradients.h"

namespace stretto {

// When ranks run a BufferHook. With before_forward, each forward pass in training mode begins with
// buffers that are equal on all ranks. With after_forward, the buffers that such a pass has updated
// are equal on all ranks when it ends, for an evaluation or a checkpoint. The hook does not run in
// forward passes inside no_sync().
enum class BufferHookLocation : std::uint8_t { before_forward, after_forward };

// What a BufferHook is handed.
struct BufferCall {
  Communicator& communicator;
  // This rank's buffers, to be changed in place. Autograd does not notice changes that are made
  // after a forward pass, because layers save running averages for backward and never read them
  // there. The hooks of this header change all buffers, so a buffer that backward does read must be
  // named in DistributedDataParallelOptions::parameters_to_ignore.
  const std::vector<ddp::NamedTensor>& buffers;
  std::optional<Duration> timeout;
  // Inside join(): the lowest rank that has data. Ranks without data take part with the buffers
  // they have. Outside of join(): none.
  std::optional<Rank> leader = std::nullopt;
};

// Makes buffers (running averages of batch normalisation, say) equal on all ranks. All ranks use
// the same kind of hook. Several DistributedDataParallels may share a hook of this header. If they
// share a hook that keeps state, it must tell them apart itself.
class BufferHook {
 public:
  explicit BufferHook(BufferHookLocation location = BufferHookLocation::before_forward)
      : location_(location) {}
  virtual ~BufferHook() = default;
  // Must be equal on all ranks.
  BufferHookLocation location() const { return location_; }
  // What the hook does, with its settings. Must be equal on all ranks.
  virtual std::string name() const = 0;
  // Collective, blocks. forward() passes on what run() throws.
  virtual void run(const BufferCall& call) = 0;

 private:
  const BufferHookLocation location_;
};

// Copies the buffers of rank `root`, or inside join() of BufferCall::leader, to all ranks.
class BuffersOfRank : public BufferHook {
 public:
  explicit BuffersOfRank(Rank root = 0,
                         BufferHookLocation location = BufferHookLocation::before_forward)
      : BufferHook(location), root_(root) {}
  std::string name() const override;
  void run(const BufferCall& call) override;

 private:
  Rank root_;
};

// Replaces floating-point and complex buffers by their mean over all ranks. Copies other buffers
// (counters) from rank 0, or inside join() from BufferCall::leader.
class MeanOfBuffers : public BufferHook {
 public:
  using BufferHook::BufferHook;
  std::string name() const override { return "mean"; }
  void run(const BufferCall& call) override;
};

}  // namespace stretto
