// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/c10d/process_group.h"
#include "stretto/reducer/compressed_reduction.h"

namespace stretto::c10d_backend {

// A CommunicationHook of the reducer's for PyTorch's DistributedDataParallel, which keeps its
// buckets itself. One thread at a time.
class DdpCommHook {
 public:
  explicit DdpCommHook(std::shared_ptr<CommunicationHook> hook) : hook_(std::move(hook)) {}

  // Collective, before the first reduce(). `parameters` are all that have gradients, by name.
  void attach(c10::intrusive_ptr<ProcessGroupStretto> group, const std::vector<std::string>& names,
              const Tensors& parameters);
  // A bucket that is full, in place: its buffer, the gradients in it, and which of the parameters'
  // they are. `index` counts the buckets of a step; 0 begins a step, also if the one before has
  // failed. With the last one all are reduced to their mean, for which this blocks. PyTorch does
  // not say which of them this rank has not computed; those hold zeros, so a gradient of zeros is
  // silent (FullBucket). What it throws fails the step.
  void reduce(std::size_t index, bool is_last, const at::Tensor& buffer, const Tensors& gradients,
              const std::vector<std::size_t>& numbers);

  std::string name() const { return hook_->name(); }
  // Null: it has none.
  const CompressionStatistics* last_step() const { return hook_->last_compression(); }
  std::vector<std::byte> save() const { return hook_->save(); }
  void load(std::span<const std::byte> state);

 private:
  // What is in flight, and what it refers to.
  struct Bucket {
    at::Tensor buffer;
    std::vector<std::size_t> numbers;
    std::vector<View> views;
    std::vector<std::uint8_t> silent;
    FullBucket full;
    stretto::Work work;
  };

  const std::shared_ptr<CommunicationHook> hook_;
  const std::shared_ptr<const void> owner_ = std::make_shared<char>();  // Of the hook.
  c10::intrusive_ptr<ProcessGroupStretto> group_;
  std::uint64_t attached_to_ = 0;                 // The serial() of the communicator.
  std::vector<std::unique_ptr<Bucket>> buckets_;  // Of the step so far.
  std::uint64_t step_ = 0;
};

}  // namespace stretto::c10d_backend
