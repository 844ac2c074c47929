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

// Runs a CommunicationHook of the reducer's for PyTorch's DistributedDataParallel, which keeps its
// buckets itself. One thread at a time.
class DdpCommHook {
 public:
  // `make_on_host` makes the hook that reduces buckets in memory of the CPU. On a device, the codec
  // and the exchange of `compression` compress gradients if they are given and can be used there;
  // else buckets are copied to the CPU and back.
  DdpCommHook(std::function<std::shared_ptr<CommunicationHook>()> make_on_host,
              std::optional<CompressionOptions> compression)
      : make_on_host_(std::move(make_on_host)),
        compression_(std::move(compression)),
        hook_(make_on_host_()) {}

  // Collective; to be called before the first reduce(). `parameters` are all that have gradients,
  // `names` their names. With `may_be_unused`, a backward pass may leave some of them unused; their
  // gradients then hold zeros. State that the hook keeps of gradients stays with it, also when it
  // moves to another device. If this throws, the hook stays as it was.
  void attach(c10::intrusive_ptr<ProcessGroupStretto> group, const std::vector<std::string>& names,
              const Tensors& parameters, bool may_be_unused);
  // Collective; called instead of attach() for a hook whose buckets PyTorch's operations reduce.
  // Fails unless all ranks have the hook `name`.
  void agree(const c10::intrusive_ptr<ProcessGroupStretto>& group, const std::string& name) const;
  // Reduces a full bucket in place. `counts` are the elements of the gradients that lie in `buffer`
  // one behind the other, `numbers` those of their parameters. `index` counts the buckets of a
  // step. With `is_last`, blocks until all buckets of the step are reduced to their mean; on a
  // device, the calling thread's current stream has them then. PyTorch does not say which gradients
  // this rank has not computed, so a gradient of zeros counts as silent (FullBucket); on a device,
  // only if some may be unused. An exception fails the step; then only attach() makes sense.
  void reduce(std::size_t index, bool is_last, const at::Tensor& buffer,
              const std::vector<std::size_t>& counts, const std::vector<std::size_t>& numbers);

  std::string name() const { return hook_->name(); }
  // Null if the hook does not compress.
  const CompressionStatistics* last_step() const { return hook_->last_compression(); }
  std::vector<std::byte> save() const;
  void load(std::span<const std::byte> state);

 private:
  // A bucket in flight, and what it refers to.
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
  const std::shared_ptr<const void> owner_ = std::make_shared<char>();  // Claims the hook.
  std::optional<std::vector<std::byte>> loaded_;  // From load() before the first attach().
  c10::intrusive_ptr<ProcessGroupStretto> group_;
  // Since attach():
  std::shared_ptr<CommunicationHook> hook_;
  at::Device device_ = at::kCPU;  // Where buckets are reduced.
  std::shared_ptr<BucketMemory> memory_;
  bool may_be_unused_ = false;
  std::uint64_t attached_to_ = 0;  // The serial() of the communicator.
  // Buckets of this step so far, or of the last one: a device may still work on them.
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<at::Tensor> copies_;  // On the host, by index.
  std::uint64_t step_ = 0;
};

}  // namespace stretto::c10d_backend
