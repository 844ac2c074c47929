// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <utility>

#include "stretto/base/round_up.h"
#include "stretto/torch/device_tensors.h"
#include "stretto/torch/extract_exchange.h"
#include "stretto/torch/streams.h"

namespace stretto::ddp {
namespace {

// What lies in memory of the communicator begins at a multiple of this, as all dtypes may.
constexpr std::size_t kAlignment = 16;

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
  // Memory: the gradients that travel as they are, and then a share of each rank, in which its
  // indices, counted from the beginning of the bucket, and numbers lie in the order of the
  // extracts.
  struct Bucket {
    BucketExtracts own;
    Memory memory;
    std::size_t plain_bytes = 0;
    std::size_t share_bytes = 0;
    TimePoint sent;

    ByteSpan plain() const { return memory.bytes().first(plain_bytes); }
    ByteSpan shares(std::size_t first, std::size_t count) const {
      return memory.bytes().subspan(round_up(plain_bytes, kAlignment) + first * share_bytes,
                                    count * share_bytes);
    }
  };

  std::size_t ranks() const { return static_cast<std::size_t>(communicator_->size()); }
  ByteSpan own_share(const Bucket& bucket) const {
    return bucket.shares(static_cast<std::size_t>(communicator_->rank().value()), 1);
  }
  torch::Tensor part(ByteSpan share, std::size_t& at, std::size_t bytes) const;
  void lay_out(Bucket& bucket) const;
  void copy_own(const Bucket& bucket) const;
  std::vector<PlacedExtract> extracts_in(const Bucket& bucket, ByteSpan share) const;

  const torch::Device device_;
  Communicator* communicator_ = nullptr;
  std::vector<Bucket> buckets_;  // By index.
};

torch::Tensor DeviceExchange::part(ByteSpan share, std::size_t& at, std::size_t bytes) const {
  const torch::Tensor found = tensor_of(share.subspan(at, bytes), device_);
  at += round_up(bytes, kAlignment);
  return found;
}

void DeviceExchange::lay_out(Bucket& bucket) const {
  bucket.plain_bytes = bucket.share_bytes = 0;
  for (const View& view : bucket.own.plain) bucket.plain_bytes += view.bytes();
  for (const PlacedExtract& placed : bucket.own.extracts) {
    const std::size_t indices = placed.how.greatest * sizeof(std::uint32_t);
    const std::size_t numbers = placed.how.number_bytes(placed.count);
    bucket.share_bytes += round_up(indices, kAlignment) + round_up(numbers, kAlignment);
  }
  const std::size_t bytes = round_up(bucket.plain_bytes, kAlignment) + bucket.share_bytes * ranks();
  if (bucket.memory.bytes().size() >= bytes) return;
  bucket.memory = {};
  bucket.memory = communicator_->allocate_bytes(bytes, communicator_->device());
}

// Where a rank's extracts lie in its share.
std::vector<PlacedExtract> DeviceExchange::extracts_in(const Bucket& bucket, ByteSpan share) const {
  std::vector<PlacedExtract> extracts;
  std::size_t at = 0;
  for (const PlacedExtract& own : bucket.own.extracts) {
    PlacedExtract& placed = extracts.emplace_back(PlacedExtract{{}, own.how, own.first, own.count});
    if (const std::size_t indices = own.how.greatest * sizeof(std::uint32_t); indices > 0) {
      placed.extract.indices = part(share, at, indices).view(torch::kInt);
    }
    placed.extract.numbers = part(share, at, own.how.number_bytes(own.count));
  }
  return extracts;
}

// Behind what the calling thread has begun.
void DeviceExchange::copy_own(const Bucket& bucket) const {
  std::size_t at = 0;
  for (const View& view : bucket.own.plain) {
    tensor_of(bucket.plain().subspan(at, view.bytes()), device_)
        .copy_(tensor_of(ConstByteSpan(view.span()), device_));
    at += view.bytes();
  }
  const std::vector<PlacedExtract> to = extracts_in(bucket, own_share(bucket));
  for (std::size_t i = 0; i < to.size(); ++i) {
    const DeviceExtract& from = bucket.own.extracts[i].extract;
    if (from.indices.defined()) {
      to[i].extract.indices.copy_(from.indices).add_(static_cast<std::int64_t>(to[i].first));
    }
    to[i].extract.numbers.copy_(from.numbers);
  }
}

StartedExchange DeviceExchange::start(const FullBucket& full, BucketExtracts own,
                                      const codec::Position&) {
  buckets_.resize(full.of_count);
  Bucket& bucket = buckets_[full.index];
  bucket.own = std::move(own);
  lay_out(bucket);
  on_device([&] {
    const torch::NoGradGuard no_grad;
    copy_own(bucket);
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
      of_ranks.push_back(extracts_in(bucket, bucket.shares(r, 1)));
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
