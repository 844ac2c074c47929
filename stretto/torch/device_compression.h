// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/codec/codec.h"
#include "stretto/reducer/communication_hook.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/torch/device_buckets.h"
#include "stretto/torch/device_extraction.h"
#include "stretto/torch/sparse_gradients.h"

namespace stretto::ddp {

// Buckets of gradients that are compressed, where one that a rank has not computed is to keep its
// residual: the host waits to see whether it holds zeros.
class CompressedDeviceBuckets final : public DeviceBuckets {
 public:
  explicit CompressedDeviceBuckets(torch::Device device) : DeviceBuckets(device), device_(device) {}
  bool is_zero(ConstByteSpan bytes) const override;

 private:
  torch::Device device_;
};

// Compresses gradients in buckets of a device by a codec that has an extraction. What looks at
// every element is done there, by PyTorch's operators, where the residuals are, too; messages are
// made, exchanged and read on the host, whatever moves its data. So only what is about as long as
// the messages goes from one to the other, and results have the bits of a CompressedReduction with
// that codec and no other options.
//
// The message of a bucket leaves when the next one is full, or the last: the host waits for the
// device then, if that has not got so far. Gradients without a codec are reduced on the host, as
// they are. Times in its statistics are the host's.
class DeviceCompression final : public CommunicationHook {
 public:
  // Null where buckets have to be on the host: of another codec, of no gradient that it compresses,
  // or of so many ranks that messages are not gathered.
  static std::shared_ptr<DeviceCompression> create(const std::shared_ptr<const Compressor>& codec,
                                                   const std::vector<NamedTensor>& parameters,
                                                   int ranks);
  DeviceCompression(std::shared_ptr<const Codec> codec, torch::Device device);
  ~DeviceCompression() override;

  std::string name() const override;
  void attach(Communicator& communicator, std::span<const GradientDescription> gradients) override;
  Work start(Communicator& communicator, const FullBucket& full) override;
  void finish(const FullBucket& full) override;
  void forget(std::span<const std::size_t> gradients) override;
  const CompressionStatistics* last_compression() const override { return &last_step_; }

 private:
  // What is remembered of a gradient that is compressed.
  struct Gradient {
    std::string name;
    std::size_t count = 0;
    Memory residual;  // Of the device; made in the first step.
    // As it was before a step that may turn out to have been none for this gradient.
    torch::Tensor before = {};
  };
  struct Item;
  struct Bucket;

  codec::Position position() const;
  torch::Tensor residual_of(const Gradient& gradient) const;
  torch::Tensor extract(const FullBucket& full, Item& item);
  void encode(const FullBucket& full, Bucket& bucket);
  void send(Bucket& bucket);
  ByteSpan write_messages(Bucket& bucket);
  void add_messages(const FullBucket& full, const Bucket& bucket, const torch::Tensor& sums,
                    Upload& upload);
  void keep_rests(const Bucket& bucket, Upload& upload) const;

  const std::shared_ptr<const Codec> codec_;
  const torch::Device device_;
  std::map<std::string, Gradient> gradients_;
  std::vector<Gradient*> by_index_;  // Null: it travels as it is.
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<Bucket*> pending_;  // That have not been sent.
  std::optional<c10::Stream> to_host_;
  Communicator* communicator_ = nullptr;
  std::uint64_t step_ = 0;
  std::optional<std::uint64_t> bucket_step_;  // FullBucket::step of the step that has begun.
  codec::Scratch scratch_;
  CompressionStatistics this_step_;
  CompressionStatistics last_step_;
};

}  // namespace stretto::ddp
