// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <utility>

#include "stretto/base/round_up.h"
#include "stretto/torch/device_tensors.h"
#include "stretto/torch/extract_exchange.h"
#include "stretto/torch/extract_share.h"

namespace stretto::ddp {
namespace {

class DeviceExchange final : public ExtractExchange {
 public:
  explicit DeviceExchange(torch::Device device) : device_(device) {}

  void attach(Communicator& communicator) override {
    communicator_ = &communicator;
    buckets_.clear();
  }
  std::string_view name() const override { return "exchanged there, "; }
  StartedExchange start(const FullBucket& full, BucketExtracts own,
                        const codec::Position& position) override;
  TimePoint wait(const FullBucket& full) override { return buckets_[full.index].sent; }
  void finish(const FullBucket& full) override;

 private:
  // Memory: the gradients that travel as they are, and then a share of each rank.
  struct Bucket {
    BucketExtracts own;
    Memory memory;
    std::size_t plain_bytes = 0;
    std::size_t share_bytes = 0;
    TimePoint sent;

    ByteSpan plain() const { return memory.bytes().first(plain_bytes); }
    ByteSpan shares(std::size_t first, std::size_t count) const {
      return memory.bytes().subspan(round_up(plain_bytes, kShareAlignment) + first * share_bytes,
                                    count * share_bytes);
    }
  };

  std::size_t ranks() const { return static_cast<std::size_t>(communicator_->size()); }
  ByteSpan own_share(const Bucket& bucket) const {
    return bucket.shares(static_cast<std::size_t>(communicator_->rank().value()), 1);
  }
  void lay_out(Bucket& bucket) const;

  const torch::Device device_;
  Communicator* communicator_ = nullptr;
  std::vector<Bucket> buckets_;  // By index.
};

void DeviceExchange::lay_out(Bucket& bucket) const {
  bucket.plain_bytes = bytes_of(bucket.own.plain);
  bucket.share_bytes = share_bytes(bucket.own.extracts);
  make_room(bucket.memory,
            round_up(bucket.plain_bytes, kShareAlignment) + bucket.share_bytes * ranks(),
            *communicator_);
}

StartedExchange DeviceExchange::start(const FullBucket& full, BucketExtracts own,
                                      const codec::Position&) {
  buckets_.resize(full.of_count);
  Bucket& bucket = buckets_[full.index];
  bucket.own = std::move(own);
  lay_out(bucket);
  on_device([&] {
    const torch::NoGradGuard no_grad;
    copy_gradients(bucket.own.plain, bucket.plain(), device_);
    copy_extracts(bucket.own.extracts, own_share(bucket), device_);
  });
  for (PlacedExtract& placed : bucket.own.extracts) placed.extract = {};
  full.memory->publish();
  std::vector<Work> works;
  if (bucket.plain_bytes > 0) {
    const std::size_t count = bucket.plain_bytes / size_bytes(full.view.dtype);
    works.push_back(communicator_->all_reduce(View(bucket.plain().data(), count, full.view.dtype),
                                              {.op = full.op, .timeout = full.timeout}));
  }
  bucket.sent = Clock::now();
  if (bucket.share_bytes == 0) return {Work::all(std::move(works))};
  const ByteSpan all = bucket.shares(0, ranks());
  works.push_back(communicator_->all_gather(own_share(bucket), all, {.timeout = full.timeout}));
  return {Work::all(std::move(works)), bucket.share_bytes, all.size() - bucket.share_bytes};
}

void DeviceExchange::finish(const FullBucket& full) {
  const Bucket& bucket = buckets_[full.index];
  on_device([&] {
    const torch::NoGradGuard no_grad;
    std::vector<std::vector<PlacedExtract>> of_ranks;
    for (std::size_t r = 0; r < ranks() && bucket.share_bytes > 0; ++r) {
      of_ranks.push_back(extracts_in(bucket.shares(r, 1), bucket.own.extracts, device_));
    }
    put_together(full, device_, of_ranks, bucket.own.plain, tensor_of(bucket.plain(), device_));
  });
  full.memory->publish();
}

}  // namespace

std::unique_ptr<ExtractExchange> exchange_on_device(torch::Device device) {
  return std::make_unique<DeviceExchange>(device);
}

}  // namespace stretto::ddp
