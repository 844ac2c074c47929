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

// What this rank keeps of a gradient that is factored, or of a part whose sum it rounds.
struct KeptResidual {
  torch::Tensor values;
  bool is_silent = false;  // FullBucket::silent of the gradient.
  std::size_t first = 0;   // Element of the bucket.
};

// What this rank has taken out of a bucket, which its streams may still be doing.
struct BucketExtracts {
  // Of gradients with a codec, in the order of the bucket; where they are divided, of each its
  // parts, in the order of the ranks that add them up, also those of no elements.
  std::vector<PlacedExtract> extracts = {};
  // If gradients are divided, what this rank keeps of the parts that it adds up, in their order. Of
  // gradients that are factored, in place of extracts: what there is to say, unless it is silent.
  std::vector<KeptResidual> residuals = {};
  std::vector<std::string_view> names = {};  // Theirs, which the hook keeps.
  std::vector<View> plain = {};              // Gradients that travel as they are.
};

// What start() has begun.
struct StartedExchange {
  // What the Reducer is to wait for before finish(), and later where the program does not get so
  // far; none where finish() waits.
  Work work = {};
  // How long start() has waited for other ranks, in the middle of backward.
  Duration waited = {};
};

// What has been exchanged of a bucket.
struct ExchangedExtracts {
  TimePoint sent;  // When this rank's part had been.
  // Of the extracts.
  std::size_t sent_bytes = 0;
  std::size_t received_bytes = 0;
  std::size_t factors = 0;  // Numbers that were sent as such.
};

// Brings the extracts of all ranks, or of their sums, to each of them; extracts are added in the
// order of ranks, as everywhere. Gradients without a codec are reduced. One thread at a time, which
// calls start() and finish() in the order of buckets.
class ExtractExchange {
 public:
  virtual ~ExtractExchange() = default;
  // The communicator of all later calls; earlier buckets have ended, or have failed.
  virtual void attach(Communicator& communicator) = 0;
  // What the hook's name says of it: all ranks exchange in the same way.
  virtual std::string_view name() const = 0;
  // Called behind attach() of all gradients that are long enough. False: this one travels as it is,
  // and is not asked for by what follows.
  virtual bool describe(const GradientDescription&) { return true; }
  // What it keeps of a gradient from step to step. keep() makes it what was saved, if there is
  // something, and forget() what it was before the last step.
  virtual std::span<const float> kept(std::string_view) const { return {}; }
  virtual void keep(std::string_view, const std::vector<float>*) {}
  virtual void forget(std::string_view) {}
  // Whether it is handed parts of gradients, each of which one rank adds up: CompressedExchange.
  virtual bool divides() const { return false; }
  // Whether a step that fails in the middle leaves residuals that are not whole.
  virtual bool spoils_residuals() const { return divides(); }
  // All ranks have the same gradients in a bucket.
  virtual StartedExchange start(const FullBucket& full, BucketExtracts own,
                                const codec::Position& position) = 0;
  // Waits for what start() has not handed out.
  virtual ExchangedExtracts wait(const FullBucket& full) = 0;
  // Behind it, on the calling thread's current stream, the bucket is what FullBucket::op says.
  virtual void finish(const FullBucket& full) = 0;
};

// What implementations of it have in common. Buckets are destroyed behind the members of the
// derived class, so their destructors must not use these.
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
  // For start(), which may be the first to see it.
  Bucket& bucket_of(const FullBucket& full) {
    while (buckets_.size() <= full.index) buckets_.push_back(std::make_unique<Bucket>());
    return *buckets_[full.index];
  }
  std::size_t ranks() const { return static_cast<std::size_t>(communicator_->size()); }
  std::size_t rank() const { return static_cast<std::size_t>(communicator_->rank().value()); }

  const torch::Device device_;
  Communicator* communicator_ = nullptr;
  std::vector<std::unique_ptr<Bucket>> buckets_;  // By index.
  std::vector<Bucket*> pending_;  // Whose exchange goes on in start() of later ones, in order.
};

// As they are, of a codec whose messages have a fixed length, in memory of the device that the
// communicator makes and whose operations it runs: nothing goes to the host, which waits only as
// these operations do.
std::unique_ptr<ExtractExchange> exchange_on_device(torch::Device device);

// The same by parts, of a codec whose extracts are all of a vector: each rank gets the others'
// extracts of its part of each gradient, adds them, and sends all ranks what it takes out of the
// sums. Those of a bucket leave when the next one is full, or the last: the host waits then as it
// does for operations of the communicator.
std::unique_ptr<ExtractExchange> divided_exchange_on_device(std::shared_ptr<const Codec> codec,
                                                            torch::Device device);

// As messages of the codec, which the host makes, exchanges, whatever moves its data, and reads. So
// only what is about as long as the messages goes to the host and comes from there. The message of
// a bucket leaves when the next one is full, or the last: the host waits for the device then, if
// that has not got so far, and for the lengths of all ranks' messages, unless these are fixed.
std::unique_ptr<ExtractExchange> exchange_by_host(std::shared_ptr<const Codec> codec,
                                                  torch::Device device);

// By factors of this rank, PowerSGD's, which go through the host: two all_reduces, each of which
// leaves when a later bucket is full, or the last. The host waits then for the device, and for
// other ranks.
std::unique_ptr<ExtractExchange> factored_exchange_by_host(std::size_t rank, torch::Device device);

}  // namespace stretto::ddp
