// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <utility>

#include "stretto/base/check.h"
#include "stretto/reducer/compressed_exchange.h"
#include "stretto/torch_device/device_tensors.h"
#include "stretto/torch_device/extract_exchange.h"
#include "stretto/torch_device/extract_share.h"

namespace stretto::ddp {
namespace {

// Shares for each rank, which first hold this rank's parts for it and later its sums; then shares
// with each rank's parts for this one. All are as long as the longest, since NCCL takes no others
// in the communicator's memory. The works are members, so the memory is freed after them.
struct DividedBucket : BucketShares {
  DividedBucket() = default;
  DividedBucket(const DividedBucket&) = delete;
  DividedBucket& operator=(const DividedBucket&) = delete;
  // Devices may still be at work after a step has ended, which a later exception must not cut off.
  ~DividedBucket() {
    if (!has_ended) return;
    (void)parts_work.wait_status();
    (void)sums_work.wait_status();
  }

  View view;
  std::vector<std::vector<PlacedExtract>> parts;  // By the rank that adds them up.
  std::vector<KeptResidual> residuals;            // Of the parts that this rank adds up.
  std::optional<Duration> timeout;
  // With NCCL, they are in flight until the device has done the work.
  Work parts_work;
  Work sums_work;
  bool has_ended = false;
};

class DividedDeviceExchange final : public ExchangeByBucket<DividedBucket> {
 public:
  DividedDeviceExchange(std::shared_ptr<const Codec> codec, torch::Device device)
      : ExchangeByBucket(device), codec_(std::move(codec)) {}

  void attach(Communicator& communicator) override {
    ExchangeByBucket::attach(communicator);
    divisor_ = divisor_of_sums(*codec_, communicator.size());
  }
  std::string_view name() const override { return "divided there, "; }
  bool divides() const override { return true; }
  StartedExchange start(const FullBucket& full, BucketExtracts own,
                        const codec::Position& position) override;
  ExchangedExtracts wait(const FullBucket& full) override;
  void finish(const FullBucket& full) override;

 private:
  void take(DividedBucket& bucket, const FullBucket& full, BucketExtracts own) const;
  void send_parts(DividedBucket& bucket);
  Duration send_sums(DividedBucket& bucket, BucketMemory& memory);
  void add_up(const DividedBucket& bucket) const;
  PlacedExtract round(const torch::Tensor& sums, const PlacedExtract& part,
                      const KeptResidual& residual) const;

  const std::shared_ptr<const Codec> codec_;
  int divisor_ = 1;  // Of sums, before they are rounded.
};

// `own.extracts` has the parts gradient by gradient.
void DividedDeviceExchange::take(DividedBucket& bucket, const FullBucket& full,
                                 BucketExtracts own) const {
  bucket.view = full.view;
  bucket.timeout = full.timeout;
  bucket.has_ended = false;
  bucket.parts.assign(ranks(), {});
  for (std::size_t i = 0; i < own.extracts.size(); ++i) {
    if (own.extracts[i].count == 0) continue;
    bucket.parts[i % ranks()].push_back(std::move(own.extracts[i]));
  }
  bucket.residuals = std::move(own.residuals);
  std::size_t longest = 0;
  for (const std::vector<PlacedExtract>& parts : bucket.parts) {
    longest = std::max(longest, share_bytes(parts));
  }
  bucket.make_room(std::move(own.plain), longest, 2 * ranks(), device_, *communicator_);
}

StartedExchange DividedDeviceExchange::start(const FullBucket& full, BucketExtracts own,
                                             const codec::Position&) {
  DividedBucket& bucket = bucket_of(full);
  take(bucket, full, std::move(own));
  on_device([&] {
    const torch::NoGradGuard no_grad;
    copy_gradients(bucket.plain_gradients, bucket.plain(), device_);
    for (std::size_t adder = 0; adder < ranks(); ++adder) {
      copy_extracts(bucket.parts[adder], bucket.shares(adder, 1), device_);
      for (PlacedExtract& placed : bucket.parts[adder]) placed.extract = {};
    }
  });
  full.memory->publish();
  StartedExchange started{.work = bucket.reduce_plain(full, *communicator_)};
  if (bucket.share_bytes > 0) send_parts(bucket);
  // All ranks submit operations in the same order: sums of a bucket behind the parts of the next.
  std::vector<DividedBucket*> due = std::exchange(pending_, {});
  if (bucket.share_bytes > 0) (full.is_last() ? due : pending_).push_back(&bucket);
  for (DividedBucket* const each : due) started.waited += send_sums(*each, *full.memory);
  return started;
}

void DividedDeviceExchange::send_parts(DividedBucket& bucket) {
  bucket.parts_work = communicator_->all_to_all(
      bucket.shares(0, ranks()), bucket.shares(ranks(), ranks()), {.timeout = bucket.timeout});
}

// Waits for the other ranks' parts as a Reducer does for its buckets, and returns how long. Sums
// lie where this rank's own parts lay, which have been sent by then.
Duration DividedDeviceExchange::send_sums(DividedBucket& bucket, BucketMemory& memory) {
  const TimePoint begin = Clock::now();
  memory.end(bucket.parts_work).or_throw();
  const Duration waited = Clock::now() - begin;
  on_device([&] {
    const torch::NoGradGuard no_grad;
    add_up(bucket);
  });
  memory.publish();
  bucket.sums_work = communicator_->all_gather(bucket.shares(rank(), 1), bucket.shares(0, ranks()),
                                               {.timeout = bucket.timeout});
  return waited;
}

// Adds up all ranks' extracts of this rank's parts, and makes its share of the sums.
void DividedDeviceExchange::add_up(const DividedBucket& bucket) const {
  const std::vector<PlacedExtract>& own = bucket.parts[rank()];
  const torch::Tensor all = tensor_of(bucket.view, device_);
  const auto sums_of = [&](const PlacedExtract& part) {
    return part_of(all, part.first, part.count);
  };
  for (const PlacedExtract& part : own) sums_of(part).zero_();
  for (std::size_t from = 0; from < ranks(); ++from) {
    add_extracts(all, extracts_in(bucket.shares(ranks() + from, 1), own, device_));
  }
  std::vector<PlacedExtract> said;
  for (std::size_t i = 0; i < own.size(); ++i) {
    said.push_back(round(sums_of(own[i]), own[i], bucket.residuals[i]));
  }
  copy_extracts(said, bucket.shares(rank(), 1), device_);
}

// Rounds a sum as CompressedReduction does. The residual of a bounded codec is not sent with the
// sum, since it may be what this rank has clipped; nor is that of a silent gradient.
PlacedExtract DividedDeviceExchange::round(const torch::Tensor& sums, const PlacedExtract& part,
                                           const KeptResidual& residual) const {
  torch::Tensor kept = residual.values;
  if (divisor_ == 1 && !residual.is_silent) {
    return extract_from(kept.add_(sums), residual.how, part.first);
  }
  torch::Tensor rest = torch::zeros_like(sums).add_(sums.div_(divisor_));
  PlacedExtract said = extract_from(rest, residual.how, part.first);
  kept.add_(rest.mul_(divisor_));
  return said;
}

ExchangedExtracts DividedDeviceExchange::wait(const FullBucket& full) {
  STRETTO_CHECK(pending_.empty(), "bucket {} ends before its sums left", full.index);
  DividedBucket& bucket = *buckets_[full.index];
  full.memory->end(bucket.sums_work).or_throw();
  bucket.has_ended = true;
  return {bucket.sent, (ranks() + 1) * bucket.share_bytes, 2 * (ranks() - 1) * bucket.share_bytes};
}

void DividedDeviceExchange::finish(const FullBucket& full) {
  const DividedBucket& bucket = *buckets_[full.index];
  bucket.finish(full, device_, {bucket.parts.begin(), bucket.parts.end()}, divisor_);
  if (full.is_last()) buckets_.resize(full.index + 1);
}

}  // namespace

std::unique_ptr<ExtractExchange> divided_exchange_on_device(std::shared_ptr<const Codec> codec,
                                                            torch::Device device) {
  return std::make_unique<DividedDeviceExchange>(std::move(codec), device);
}

}  // namespace stretto::ddp
