// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/base/view.h"
#include "stretto/codec/codec.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/communication_hook.h"
#include "stretto/torch_device/device_extraction.h"

namespace stretto::ddp {

// The residual that this rank keeps of a gradient that is factored, or of a part whose sum it
// rounds.
struct KeptResidual {
  torch::Tensor values;
  bool is_silent = false;      // FullBucket::silent of the gradient.
  std::size_t first = 0;       // Element of the bucket.
  codec::Extraction how = {};  // Of the sum.
};

// What this rank has extracted from a bucket; its streams may still be at it.
struct BucketExtracts {
  // Of gradients with a codec, in the order of the bucket. If gradients are divided, of each its
  // parts, also empty ones, in the order of the ranks that add them up.
  std::vector<PlacedExtract> extracts = {};
  // If gradients are divided: residuals of the parts that this rank adds up, in their order. If
  // they are factored: instead of extracts, residuals that include the gradient, unless it is
  // silent.
  std::vector<KeptResidual> residuals = {};
  std::vector<std::string_view> names = {};  // Of those gradients; the hook keeps the text.
  std::vector<View> plain = {};              // Gradients that travel as they are.
};

// The operations that start() has begun.
struct StartedExchange {
  // The Reducer waits for it before finish(), or later if the program does not get that far. Empty
  // if wait() waits instead.
  Work work = {};
  // How long start() has waited for other ranks, in the middle of backward.
  Duration waited = {};
};

// The amounts that were exchanged of a bucket.
struct ExchangedExtracts {
  TimePoint sent;  // When this rank's part had been sent.
  // Bytes of extracts:
  std::size_t sent_bytes = 0;
  std::size_t received_bytes = 0;
  std::size_t factors = 0;  // Numbers sent as factors.
};

// Brings all ranks' extracts, or extracts of their sums, to each rank. Extracts are added in the
// order of ranks. Gradients without a codec are reduced. One thread at a time, which calls start()
// and finish() in the order of buckets.
class ExtractExchange {
 public:
  virtual ~ExtractExchange() = default;
  // Sets the communicator of all later calls; earlier buckets have ended, or have failed.
  virtual void attach(Communicator& communicator) = 0;
  // Its part of the hook's name, which is compared so that all ranks exchange in the same way.
  virtual std::string_view name() const = 0;
  // Called after attach() for each gradient that is long enough. False if the gradient travels as
  // it is; then the following functions are not called for it.
  virtual bool describe(const GradientDescription&) { return true; }
  // The values that the exchange keeps of a gradient from step to step. keep() sets them to saved
  // ones, or begins anew if that is null. forget() restores those from before the last step.
  virtual std::span<const float> kept(std::string_view) const { return {}; }
  virtual void keep(std::string_view, const std::vector<float>*) {}
  virtual void forget(std::string_view) {}
  // Whether it takes gradients in parts, each of which one rank adds up (CompressedExchange).
  virtual bool divides() const { return false; }
  // Whether a step that fails in the middle leaves incomplete residuals.
  virtual bool spoils_residuals() const { return divides(); }
  // Begins the exchange of a bucket, in which all ranks have the same gradients.
  virtual StartedExchange start(const FullBucket& full, BucketExtracts own,
                                const codec::Position& position) = 0;
  // Waits for all that StartedExchange::work does not include.
  virtual ExchangedExtracts wait(const FullBucket& full) = 0;
  // Makes the bucket what FullBucket::op says, on the calling thread's current stream.
  virtual void finish(const FullBucket& full) = 0;
};

// The common part of implementations. Buckets are destroyed after the members of the derived class,
// so their destructors must not use these.
template <class Bucket>
class ExchangeByBucket : public ExtractExchange {
 public:
  explicit ExchangeByBucket(torch::Device device) : device_(device) {}

  void attach(Communicator& communicator) override {
    communicator_ = &communicator;
    buckets_.clear();
    pending_.clear();
  }

 protected:
  // For start(), which may be the first to use the bucket.
  Bucket& bucket_of(const FullBucket& full) {
    while (buckets_.size() <= full.index) buckets_.push_back(std::make_unique<Bucket>());
    return *buckets_[full.index];
  }
  std::size_t ranks() const { return static_cast<std::size_t>(communicator_->size()); }
  std::size_t rank() const { return static_cast<std::size_t>(communicator_->rank().value()); }

  const torch::Device device_;
  Communicator* communicator_ = nullptr;
  std::vector<std::unique_ptr<Bucket>> buckets_;  // By index.
  std::vector<Bucket*> pending_;                  // Continue in start() of later ones, in order.
};

// Exchanges extracts as they are, of a codec whose messages have a fixed length. They lie in the
// communicator's memory on the device, where its operations run: nothing goes to the host, which
// waits only as these operations do.
std::unique_ptr<ExtractExchange> exchange_on_device(torch::Device device);

// The same by parts, of a codec that extracts whole vectors. Each rank gets the others' extracts of
// its part of each gradient, adds them, and sends extracts of the sums to all ranks. The sums of a
// bucket are sent when the next bucket, or the last one, is full; the host waits then as it does
// for operations of the communicator.
std::unique_ptr<ExtractExchange> divided_exchange_on_device(std::shared_ptr<const Codec> codec,
                                                            torch::Device device);

// Exchanges messages of the codec, which the host encodes and decodes, by any transport. Only about
// as many bytes as the messages have are copied to the host and back. The message of a bucket is
// sent when the next bucket, or the last one, is full. The host waits then for the device if that
// is not done yet, and for the lengths of all ranks' messages, unless they are fixed.
std::unique_ptr<ExtractExchange> exchange_by_host(std::shared_ptr<const Codec> codec,
                                                  torch::Device device);

// Exchanges PowerSGD's factors of rank `rank` by way of the host, in two all_reduces. Each begins
// when a later bucket, or the last one, is full; the host waits then for the device and for other
// ranks.
std::unique_ptr<ExtractExchange> factored_exchange_by_host(std::size_t rank, torch::Device device);

}  // namespace stretto::ddp
