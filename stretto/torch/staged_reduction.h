// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/reducer/communication_hook.h"

namespace stretto::ddp {

// Reduces buckets on a device whose memory the communicator does not reach, through memory of the
// host. A slice of a bucket goes through three stages, while other slices are in the other stages:
// it is copied to page-locked memory that the ranks of the host have mapped; the communicator
// reduces it there and between hosts, whatever moves its data; it is copied back. Each direction
// has a stream of its own. Results have the bits of a PlainReduction on the host.
//
// The slices of a bucket are reduced when the next bucket is full, those of the last bucket at
// once. The host waits for their copies then; the device waits for nobody. If each slice were
// reduced as soon as it has been copied, ranks could begin it and other operations in different
// orders.
class StagedReduction final : public CommunicationHook {
 public:
  explicit StagedReduction(torch::Device device);
  ~StagedReduction() override;

  std::string name() const override { return "plain, by way of the host"; }
  void attach(Communicator& communicator, std::span<const GradientDescription> gradients) override;
  Work start(Communicator& communicator, const FullBucket& full) override;
  void finish(const FullBucket& full) override;

 private:
  struct Slice;
  struct Bucket;

  void copy_to_host(const FullBucket& full, Bucket& bucket);
  void reduce_copied(std::size_t left);
  void wait_for_copies() const;

  const torch::Device device_;
  Communicator* communicator_ = nullptr;
  std::vector<std::unique_ptr<Bucket>> buckets_;  // By index.
  std::deque<Slice*> copied_;                     // Not being reduced yet, in order.
  std::optional<std::uint64_t> step_;             // FullBucket::step of the step that has begun.
  std::optional<c10::Stream> to_host_;
  std::optional<c10::Stream> to_device_;
};

}  // namespace stretto::ddp
