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
#include "stretto/torch_device/device_buckets.h"
#include "stretto/torch_device/extract_exchange.h"

namespace stretto::ddp {

// Buckets of gradients that are compressed. A gradient that a rank has not computed must keep its
// residual, so the host waits to see whether a gradient holds zeros.
class CompressedDeviceBuckets final : public DeviceBuckets {
 public:
  using DeviceBuckets::DeviceBuckets;
  bool is_zero(ConstByteSpan bytes) const override;
};

// Compresses gradients in buckets on a device by a codec that has an extraction, or by power_sgd().
// Work on every element is done on the device (device_extraction.h), where the residuals are, too;
// an ExtractExchange brings the extracts to the other ranks. Results have the bits of a
// CompressedReduction with that codec, no other options, and an exchange that gathers or divides as
// this one does; if that one combines, values in int8 have other blocks. With power_sgd() they
// agree only nearly. Gradients without a codec, and with dense() all, are reduced as they are.
// Times in the statistics are the host's.
class DeviceCompression final : public CommunicationHook {
 public:
  // A hook for buckets on `device` with these gradients; null if the host has to compress them.
  // `wanted`: how messages are to travel, `gather` or `divide`. `is_of_communicator`: whether
  // operations of the communicator reduce tensors that are there.
  static std::shared_ptr<DeviceCompression> make(std::shared_ptr<const Compressor> compressor,
                                                 CompressedExchange wanted,
                                                 std::span<const GradientDescription> gradients,
                                                 torch::Device device, int ranks,
                                                 bool is_of_communicator);
  // How messages of the codec would travel. Nothing if the device cannot do that or what is wanted:
  // the codec has to compress some of the gradients, and messages that are divided have no indices.
  static std::optional<CompressedExchange> exchange_of(
      const Codec& codec, std::span<const GradientDescription> gradients, int ranks,
      CompressedExchange wanted);
  DeviceCompression(std::shared_ptr<const Compressor> compressor, torch::Device device,
                    std::unique_ptr<ExtractExchange> exchange);
  ~DeviceCompression() override;

  std::string name() const override;
  void attach(Communicator& communicator, std::span<const GradientDescription> gradients) override;
  Work start(Communicator& communicator, const FullBucket& full) override;
  void finish(const FullBucket& full) override;
  void forget(std::span<const std::size_t> gradients) override;
  const CompressionStatistics* last_compression() const override { return &last_step_; }
  // In the format of a CompressedReduction. After a step that has failed, throws InvalidArgument if
  // ranks divide gradients or add up factors: the residuals are incomplete then.
  std::vector<std::byte> save() const override;
  // Throws InvalidArgument if `state` does not fit. Before the first attach(), that throws instead.
  void load(std::span<const std::byte> state) override;

 private:
  // The state of a gradient that is compressed.
  struct Gradient {
    std::string name;
    std::size_t count = 0;
    std::uint64_t key = 0;           // Of random numbers.
    Memory residual = {};            // Of the device; made in the first step that needs it.
    std::vector<float> loaded = {};  // Initial values of the residual.
    // The residual before the step. It is restored if no rank has computed the gradient there.
    torch::Tensor before = {};
  };

  static bool compresses(const GradientDescription& gradient);
  static bool can_factor(std::span<const GradientDescription> gradients, std::size_t rank);
  void restore(std::span<const std::byte> saved);
  codec::Position position() const;
  codec::Extraction extraction_of(std::size_t gradient, std::size_t adder, bool of_sum) const;
  torch::Tensor residual_of(const Gradient& gradient) const;
  std::vector<PlacedExtract> take_out(torch::Tensor carry, std::size_t gradient,
                                      std::size_t first) const;
  void extract(const FullBucket& full, std::size_t i, Gradient& gradient, BucketExtracts& own);
  BucketExtracts extract_all(const FullBucket& full);

  const std::shared_ptr<const Compressor> compressor_;
  // The same, or null if it is no codec: the exchange then takes factors out of the residuals.
  const Codec* const codec_;
  const torch::Device device_;
  const std::unique_ptr<ExtractExchange> exchange_;
  std::map<std::string, Gradient> gradients_;
  std::vector<Gradient*> by_index_;  // Null: it travels as it is.
  Communicator* communicator_ = nullptr;
  std::size_t rank_ = 0;
  std::size_t ranks_ = 0;
  std::optional<std::vector<std::byte>> loaded_;  // Until it is attached.
  std::uint64_t step_ = 0;
  std::optional<std::uint64_t> bucket_step_;  // FullBucket::step of the step that has begun.
  // The step has not ended; if nothing runs, it has failed.
  bool is_open_ = false;
  CompressionStatistics this_step_;
  CompressionStatistics last_step_;
};

}  // namespace stretto::ddp
