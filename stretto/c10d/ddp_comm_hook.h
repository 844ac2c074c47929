// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/c10d/process_group.h"
#include "stretto/reducer/compressed_reduction.h"

namespace stretto::c10d_backend {

// A CommunicationHook of the reducer's for PyTorch's DistributedDataParallel, which keeps its
// buckets itself. One thread at a time.
class DdpCommHook {
 public:
  // `make_on_host` makes what reduces buckets in memory of the CPU. On a device gradients are
  // compressed by the codec and the exchange of `compression`, if there is one and that can be done
  // there; else their buckets are copied to the CPU and back.
  DdpCommHook(std::function<std::shared_ptr<CommunicationHook>()> make_on_host,
              std::optional<CompressionOptions> compression)
      : make_on_host_(std::move(make_on_host)),
        compression_(std::move(compression)),
        hook_(make_on_host_()) {}

  // Collective, before the first reduce(). `parameters` are all that have gradients, by name; a
  // backward pass may leave some of them unused, and then their gradients hold zeros. What is kept
  // of gradients goes with the hook, also to another device. Behind what this throws the hook is
  // where it was.
  void attach(c10::intrusive_ptr<ProcessGroupStretto> group, const std::vector<std::string>& names,
              const Tensors& parameters, bool may_be_unused);
  // In the place of attach(), of a hook whose buckets PyTorch's operations reduce: all ranks have
  // the same one.
  void agree(const c10::intrusive_ptr<ProcessGroupStretto>& group, const std::string& name) const;
  // A bucket that is full, in place: its buffer, and how long the gradients in it are, one behind
  // the other, and of which parameters. `index` counts the buckets of a step. With the last one all
  // are reduced to their mean, for which this blocks; on a device the calling thread's current
  // stream has them then. PyTorch does not say which of them this rank has not computed, so a
  // gradient of zeros is silent (FullBucket), on a device where some may be unused. What it throws
  // fails the step, behind which only attach() makes sense.
  void reduce(std::size_t index, bool is_last, const at::Tensor& buffer,
              const std::vector<std::size_t>& counts, const std::vector<std::size_t>& numbers);

  std::string name() const { return hook_->name(); }
  // Null: it has none.
  const CompressionStatistics* last_step() const { return hook_->last_compression(); }
  std::vector<std::byte> save() const;
  void load(std::span<const std::byte> state);

 private:
  // What is in flight, and what it refers to.
  struct Bucket {
    at::Tensor buffer;
    at::Tensor place;  // Where it is reduced.
    std::vector<std::size_t> numbers;
    std::vector<View> views = {};
    std::vector<std::uint8_t> silent = {};
    FullBucket full = {};
    stretto::Work work = {};
  };

  std::shared_ptr<CommunicationHook> hook_there(const Communicator& communicator,
                                                std::span<const GradientDescription> gradients,
                                                const Tensors& parameters) const;
  std::optional<std::vector<std::byte>> what_is_kept() const;
  at::Tensor place_of(const at::Tensor& buffer, std::size_t index);
  std::unique_ptr<Bucket> make_bucket(std::size_t index, bool is_last, const at::Tensor& buffer,
                                      const std::vector<std::size_t>& counts,
                                      const std::vector<std::size_t>& numbers);

  const std::function<std::shared_ptr<CommunicationHook>()> make_on_host_;
  const std::optional<CompressionOptions> compression_;
  const std::shared_ptr<const void> owner_ = std::make_shared<char>();  // Of the hook.
  std::optional<std::vector<std::byte>> loaded_;  // Before the first attach().
  c10::intrusive_ptr<ProcessGroupStretto> group_;
  // Since attach():
  std::shared_ptr<CommunicationHook> hook_;
  at::Device device_ = at::kCPU;  // Where buckets are reduced.
  std::shared_ptr<BucketMemory> memory_;
  bool may_be_unused_ = false;
  std::uint64_t attached_to_ = 0;  // The serial() of the communicator.
  // Of the step so far, or the last one: a device may yet work on them.
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<at::Tensor> copies_;  // On the host, by index.
  std::uint64_t step_ = 0;
};

}  // namespace stretto::c10d_backend
