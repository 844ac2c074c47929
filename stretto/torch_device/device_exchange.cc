// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <utility>

#include "stretto/torch_device/device_tensors.h"
#include "stretto/torch_device/extract_exchange.h"
#include "stretto/torch_device/extract_share.h"

namespace stretto::ddp {
namespace {

struct GatheredBucket : BucketShares {  // One share of each rank.
  std::vector<PlacedExtract> extracts;
};

class DeviceExchange final : public ExchangeByBucket<GatheredBucket> {
 public:
  using ExchangeByBucket::ExchangeByBucket;

  std::string_view name() const override { return "exchanged there, "; }
  StartedExchange start(const FullBucket& full, BucketExtracts own,
                        const codec::Position& position) override;
  ExchangedExtracts wait(const FullBucket& full) override;
  void finish(const FullBucket& full) override;

 private:
  ByteSpan own_share(const GatheredBucket& bucket) const { return bucket.shares(rank(), 1); }
};

StartedExchange DeviceExchange::start(const FullBucket& full, BucketExtracts own,
                                      const codec::Position&) {
  GatheredBucket& bucket = bucket_of(full);
  bucket.extracts = std::move(own.extracts);
  bucket.make_room(std::move(own.plain), share_bytes(bucket.extracts), ranks(), device_,
                   *communicator_);
  on_device([&] {
    const torch::NoGradGuard no_grad;
    copy_gradients(bucket.plain_gradients, bucket.plain(), device_);
    copy_extracts(bucket.extracts, own_share(bucket), device_);
  });
  for (PlacedExtract& placed : bucket.extracts) placed.extract = {};
  full.memory->publish();
  std::vector<Work> works;
  works.push_back(bucket.reduce_plain(full, *communicator_));
  if (bucket.share_bytes == 0) return {Work::all(std::move(works))};
  const ByteSpan all = bucket.shares(0, ranks());
  works.push_back(communicator_->all_gather(own_share(bucket), all, {.timeout = full.timeout}));
  return {Work::all(std::move(works))};
}

ExchangedExtracts DeviceExchange::wait(const FullBucket& full) {
  const GatheredBucket& bucket = *buckets_[full.index];
  return {bucket.sent, bucket.share_bytes, (ranks() - 1) * bucket.share_bytes};
}

void DeviceExchange::finish(const FullBucket& full) {
  const GatheredBucket& bucket = *buckets_[full.index];
  bucket.finish(full, device_, {ranks(), bucket.extracts});
  if (full.is_last()) buckets_.resize(full.index + 1);
}

}  // namespace

std::unique_ptr<ExtractExchange> exchange_on_device(torch::Device device) {
  return std::make_unique<DeviceExchange>(device);
}

}  // namespace stretto::ddp
