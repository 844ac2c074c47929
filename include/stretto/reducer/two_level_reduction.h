// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/communicator/communicator.h"
#include "stretto/reducer/communication_hook.h"

namespace stretto {

// Adds up gradients of f32 on each host, has another hook reduce the sums between hosts, and gives
// the results to all ranks of each host. A codec then makes one message for each host, however many
// ranks it has; each rank of a host encodes, decodes and keeps residuals for one part of each
// gradient. DistributedDataParallelOptions::codec uses this hook.
//
//   std::make_shared<TwoLevelReduction>(
//       std::make_shared<CompressedReduction>(CompressionOptions{.codec = int8()}))
//
// If there is one host, or one rank on each, the other hook reduces buckets as they are. Otherwise
// what the other hook says of a rank applies to a host, and what it says of a gradient applies to a
// part of the sum over the host's ranks (of their mean, for the operation mean). So clip_norm,
// NonFinite and limits apply to such parts; errors count hosts; and a trial of
// Compression::automatic is decided by the ranks that have the same part. In a mean all ranks have
// the same weight, even if hosts have different numbers of ranks; then only as many ranks of each
// host have parts as the smallest host has.
//
// Buckets lie in host memory, and this hook keeps a copy of each. Buckets of other dtypes, and
// operations other than sum and mean, are reduced by one all_reduce.
class TwoLevelReduction : public CommunicationHook {
 public:
  explicit TwoLevelReduction(std::shared_ptr<CommunicationHook> inner);
  ~TwoLevelReduction() override;

  std::string name() const override;
  // Throws what attach() of the other hook throws, on all ranks if it throws on one. Makes two
  // groups of ranks, which live until this is attached to another communicator or destroyed.
  void attach(Communicator& communicator, std::span<const GradientDescription> gradients) override;
  // Waits for the sum on the host of the bucket before; with the last bucket of a step, for all
  // sums on the host and all reductions between hosts.
  Work start(Communicator& communicator, const FullBucket& bucket) override;
  void finish(const FullBucket& bucket) override;
  void forget(std::span<const std::size_t> gradients) override;
  bool finishes_early() const override { return is_flat() && inner_->finishes_early(); }
  CommunicationHook* inner() const override { return inner_.get(); }

  // The state of the other hook, and the part of each gradient that it is for. If this rank now has
  // another part, because other ranks share hosts, load() drops from a CompressedReduction's state
  // what belongs to gradients, with a warning, and refuses the states of other hooks.
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> state) override;

 private:
  struct Bucket;
  // How many parts each gradient has, and which one this rank has: none if its host has more ranks
  // than there are parts.
  struct Place {
    std::uint32_t parts = 1;
    std::uint32_t own = 0;
  };

  // Whether the other hook reduces buckets as they are.
  bool is_flat() const { return on_host_ == nullptr; }
  bool has_part() const { return place_.own < place_.parts; }
  void find_place(Communicator& communicator);
  std::string place_text() const;
  void take_over(std::span<const std::byte> state);
  void attach_parts();
  template <class Body>
  void telling_others(const Body& body);
  void lay_out(Communicator& communicator, const FullBucket& full, Bucket& bucket) const;
  void add_up_on_host(Communicator& communicator, const FullBucket& full, Bucket& bucket) const;
  Work start_levels(Communicator& communicator, const FullBucket& full);
  void reduce_between_hosts(bool is_last);
  void hand_out();
  void forget_step();

  const std::shared_ptr<CommunicationHook> inner_;
  std::vector<GradientDescription> gradients_;
  Place place_;
  std::optional<std::vector<std::byte>> loaded_;  // Until attach().
  std::uint64_t attached_to_ = 0;                 // A Communicator::serial(); 0: none.
  double factor_ = 1;                             // Weight of a host's sum in a mean between hosts.
  std::unique_ptr<Communicator> on_host_;
  std::unique_ptr<Communicator> between_;  // Ranks that have the same part, one of each host.
  std::vector<std::unique_ptr<Bucket>> buckets_;  // By index.
  std::vector<Bucket*> begun_;                    // In this step.
  std::size_t handed_over_ = 0;    // So many of `begun_` have gone to the other hook.
  std::uint64_t others_step_ = 0;  // Of a CompressedReduction with a part.
};

}  // namespace stretto
