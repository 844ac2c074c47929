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

// When ranks run a BufferHook: in each step before the forward pass, which so begins with buffers
// that are equal everywhere; or after it, when it has updated them, so that what is evaluated or
// saved next is equal everywhere. It does not run in forward passes inside no_sync().
enum class BufferHookLocation : std::uint8_t { before_forward, after_forward };

// What a BufferHook is handed.
struct BufferCall {
  Communicator& communicator;
  // Of this rank; to be changed in place. After a forward pass autograd does not notice the change:
  // layers save running averages for backward passes that do not read them. The hooks of this
  // header change all of them, so a buffer that backward does read must be named in
  // DistributedDataParallelOptions::parameters_to_ignore.
  const std::vector<ddp::NamedTensor>& buffers;
  std::optional<Duration> timeout;
  // Inside join(), a rank that has data; those that have none take part with the buffers they have.
  std::optional<Rank> leader = std::nullopt;
};

// How ranks' buffers (running averages of batch normalisation, say) become equal. All ranks use the
// same kind. Those of this header may be used by several DistributedDataParallels; one that
// remembers things must know of which.
class BufferHook {
 public:
  explicit BufferHook(BufferHookLocation location = BufferHookLocation::before_forward)
      : location_(location) {}
  virtual ~BufferHook() = default;
  // Must be equal on all ranks.
  BufferHookLocation location() const { return location_; }
  // What it does, with its settings. Must be equal on all ranks.
  virtual std::string name() const = 0;
  // Collective, blocks. What it throws comes out of forward().
  virtual void run(const BufferCall& call) = 0;

 private:
  const BufferHookLocation location_;
};

// One rank's buffers become everyone's; inside join() the leader's.
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

// Floating-point and complex buffers become the mean of all ranks'; others (counters) rank 0's.
class MeanOfBuffers : public BufferHook {
 public:
  using BufferHook::BufferHook;
  std::string name() const override { return "mean"; }
  void run(const BufferCall& call) override;
};

}  // namespace stretto
