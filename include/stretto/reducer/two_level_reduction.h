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

// Adds gradients of f32 up on each host, has another hook reduce the sums between hosts, and hands
// the results out on each host. Then messages of a codec say what a host has to say, however many
// ranks it has; and encoding, decoding and residuals are shared out: each rank of a host has a part
// of each gradient. What DistributedDataParallelOptions::codec asks for is done so.
//
//   std::make_shared<TwoLevelReduction>(
//       std::make_shared<CompressedReduction>(CompressionOptions{.codec = int8()}))
//
// Where there is one host, or one rank on each, the other hook reduces buckets as they are. Else
// what it says of a rank is true of a host, and what it says of a gradient of a part: of a sum of
// the host's ranks, or for the operation mean, of their mean. So clip_norm, NonFinite and limits
// hold for that; errors count hosts; and ranks that have the same part decide about a trial of
// Compression::automatic. In means each rank counts alike, also where hosts have different numbers
// of ranks; then as many ranks of each host have parts as the smallest one has.
//
// Buckets lie in memory of the host, and a copy of each. Those of other dtypes, and operations
// other than sum and mean, are one all_reduce.
class TwoLevelReduction : public CommunicationHook {
 public:
  explicit TwoLevelReduction(std::shared_ptr<CommunicationHook> inner);
  ~TwoLevelReduction() override;

  std::string name() const override;
  // Throws what attach() of the other hook does: on all ranks if it does on one. Makes two groups
  // of ranks, which live until it is attached to another communicator, or destroyed.
  void attach(Communicator& communicator, std::span<const GradientDescription> gradients) override;
  // Waits for what is added up of the bucket before; with the last bucket of a step, for all.
  Work start(Communicator& communicator, const FullBucket& bucket) override;
  void finish(const FullBucket& bucket) override;
  void forget(std::span<const std::size_t> gradients) override;
  bool finishes_early() const override { return is_flat() && inner_->finishes_early(); }
  CommunicationHook* inner() const override { return inner_.get(); }

  // Of the other hook, and which part of each gradient that is of. A rank that has another part
  // now, because other ranks share hosts, takes over of a CompressedReduction's state what is not
  // of gradients, with a warning, and refuses others.
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> state) override;

 private:
  struct Bucket;
  // How many parts of each gradient there are, and which one this rank has; none where its host has
  // more ranks than that.
  struct Place {
    std::uint32_t parts = 1;
    std::uint32_t own = 0;
  };

  // Whether the other hook sees buckets as they are.
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
  std::uint64_t attached_to_ = 0;                 // Serial of a communicator; 0: none.
  double factor_ = 1;  // Of sums of a host that count in a mean between hosts.
  std::unique_ptr<Communicator> on_host_;
  std::unique_ptr<Communicator> between_;         // Of those that have the same part on each host.
  std::vector<std::unique_ptr<Bucket>> buckets_;  // By index.
  std::vector<Bucket*> begun_;                    // In this step.
  std::size_t handed_over_ = 0;                   // So many of these, to the other hook.
  std::uint64_t others_step_ = 0;                 // That of a CompressedReduction with a part.
};

}  // namespace stretto
