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

// Reduces buckets of a device whose memory the communicator does not reach, by way of the host's: a
// slice of a bucket is copied to page-locked memory that the ranks of the host have mapped, reduced
// there and between hosts by the communicator, whatever moves its data, and copied back, while
// other slices are in the other two stages. Each direction has a stream of its own. So results have
// the bits of a PlainReduction on the host.
//
// The slices of a bucket are reduced when the next one is full, or the last: there the host waits
// for their copies, and the device for nobody. To begin each as soon as it has been copied would
// have ranks begin them in different orders, where other operations come in between.
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
  std::deque<Slice*> copied_;                     // That are not being reduced, in order.
  std::optional<std::uint64_t> step_;             // FullBucket::step of the one that has begun.
  std::optional<c10::Stream> to_host_;
  std::optional<c10::Stream> to_device_;
};

}  // namespace stretto::ddp
