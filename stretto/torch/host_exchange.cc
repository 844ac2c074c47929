// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <utility>

#include <c10/core/StreamGuard.h>
#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/base/round_up.h"
#include "stretto/communicator/page_locked.h"
#include "stretto/torch/device_tensors.h"
#include "stretto/torch/extract_exchange.h"
#include "stretto/torch/streams.h"

namespace stretto::ddp {
namespace {

constexpr std::size_t kWidest = 16;  // Of an element, which lies on a multiple of its width.

// Bytes of the host that go to the device in two copies: messages, and what else is appended to
// them. Both stay where they are until the device has them.
class Upload {
 public:
  struct Place {
    std::size_t at = 0;
    std::size_t bytes = 0;
  };

  Upload(ConstByteSpan messages, std::vector<std::byte>& room) : messages_(messages), more_(room) {
    more_.clear();
  }

  Place in_messages(ConstByteSpan bytes) const {
    return {static_cast<std::size_t>(bytes.data() - messages_.data()), bytes.size()};
  }
  Place append(ConstByteSpan bytes) {
    more_.resize(round_up(more_.size(), kWidest));
    const Place place{round_up(messages_.size(), kWidest) + more_.size(), bytes.size()};
    more_.insert(more_.end(), bytes.begin(), bytes.end());
    return place;
  }

  void copy_to(torch::Device device) {
    const std::size_t first = round_up(messages_.size(), kWidest);
    const auto size = static_cast<std::int64_t>(first + more_.size());
    there_ = torch::empty({size}, torch::TensorOptions().dtype(torch::kByte).device(device));
    const auto copy = [&](std::size_t at, ConstByteSpan from) {
      if (from.empty()) return;
      part({at, from.size()}).copy_(tensor_of(from, torch::kCPU), /*non_blocking=*/true);
    };
    copy(0, messages_);
    copy(first, more_);
  }
  torch::Tensor part(const Place& place) const { return part_of(there_, place.at, place.bytes); }

 private:
  ConstByteSpan messages_;
  std::vector<std::byte>& more_;
  torch::Tensor there_;
};

// Of the host, for what goes to the device or comes from there, at least so long.
void make_room(Memory& memory, std::size_t bytes, Communicator& communicator,
               torch::Device device) {
  if (memory.bytes().size() >= bytes) return;
  memory = {};
  memory = page_locked(communicator.allocate_bytes(bytes), device.index());
}

struct Bucket {
  Bucket() = default;
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;
  // The device may be reading what goes now.
  ~Bucket() {
    try {
      if (uploaded) uploaded->synchronize();
    } catch (const c10::Error& error) {  // It has failed, and reads nothing any more.
      log(LogLevel::warning, "messages are freed behind a failure of their device: {}",
          error.what_without_backtrace());
    }
  }

  ConstByteSpan messages_of(int ranks) const {
    return all.bytes().first(own_bytes * static_cast<std::size_t>(ranks));
  }

  BucketExtracts own;
  codec::Position position;
  DType plain_dtype = DType::f32;
  torch::Tensor extracts;  // All bytes of them, behind the plain ones; until the host has them.
  std::optional<DeviceEvent> encoded;
  Memory host;
  std::size_t plain_bytes = 0;
  Memory all;                 // Messages: of rank r, share r.
  std::size_t own_bytes = 0;  // Of a share.
  std::vector<std::byte> up;  // What else the device reads.
  // Before the next step's messages are encoded, as that is behind what this step has written.
  std::optional<DeviceEvent> uploaded;
  ReduceOp op = ReduceOp::mean;
  std::optional<Duration> timeout;
  TimePoint sent;
  Work plain_work;
  Work work;
};

class HostExchange final : public ExtractExchange {
 public:
  HostExchange(std::shared_ptr<const Codec> codec, torch::Device device)
      : codec_(std::move(codec)), device_(device) {}

  void attach(Communicator& communicator) override {
    communicator_ = &communicator;
    buckets_.clear();
    pending_.clear();
  }
  std::string_view name() const override { return ""; }
  StartedExchange start(const FullBucket& full, BucketExtracts own,
                        const codec::Position& position) override;
  TimePoint wait(const FullBucket& full) override;
  void finish(const FullBucket& full) override;

 private:
  struct Said {
    std::optional<Upload::Place> indices;
    Upload::Place numbers;
  };

  std::size_t message_bytes(const PlacedExtract& placed, const codec::Position& position) const {
    return *codec_->message_bytes(placed.count, position.step);
  }
  void collect(Bucket& bucket) const;
  void send(Bucket& bucket);
  void write_messages(Bucket& bucket, ByteSpan own) const;
  codec::Extract decode(const Bucket& bucket, std::size_t extract, int rank, ConstByteSpan rest);
  std::vector<Said> read_messages(const Bucket& bucket, Upload& upload);

  const std::shared_ptr<const Codec> codec_;
  const torch::Device device_;
  Communicator* communicator_ = nullptr;
  std::vector<std::unique_ptr<Bucket>> buckets_;  // By index.
  std::vector<Bucket*> pending_;                  // That have not been sent.
  std::optional<c10::Stream> to_host_;
  codec::Scratch scratch_;
};

// What the host is to have, in one vector: gradients that travel as they are, all indices, which so
// lie where the host can read them, and all numbers.
void HostExchange::collect(Bucket& bucket) const {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> parts, numbers;
  for (const View& view : bucket.own.plain) {
    parts.push_back(tensor_of(ConstByteSpan(view.span()), device_));
  }
  for (PlacedExtract& placed : bucket.own.extracts) {
    DeviceExtract extract = std::exchange(placed.extract, {});
    if (extract.indices.defined()) parts.push_back(extract.indices.view(torch::kByte));
    numbers.push_back(std::move(extract.numbers));
  }
  parts.insert(parts.end(), numbers.begin(), numbers.end());
  bucket.extracts = torch::cat(parts);
  bucket.encoded.emplace(device_);
  bucket.encoded->record(current_stream(device_));
}

StartedExchange HostExchange::start(const FullBucket& full, BucketExtracts own,
                                    const codec::Position& position) {
  if (pending_.empty()) buckets_.resize(full.of_count);
  if (buckets_[full.index] == nullptr) buckets_[full.index] = std::make_unique<Bucket>();
  Bucket& bucket = *buckets_[full.index];
  bucket.own = std::move(own);
  bucket.position = position;
  bucket.plain_dtype = full.view.dtype;
  bucket.op = full.op;
  bucket.timeout = full.timeout;
  on_device([&] { collect(bucket); });
  full.memory->publish();
  bucket.plain_bytes = bucket.own_bytes = 0;
  for (const View& view : bucket.own.plain) bucket.plain_bytes += view.bytes();
  for (const PlacedExtract& each : bucket.own.extracts) {
    bucket.own_bytes += message_bytes(each, position);
  }
  const auto size = static_cast<std::size_t>(communicator_->size());
  make_room(bucket.host, bucket.extracts.nbytes(), *communicator_, device_);
  // While the device works on this one.
  for (Bucket* const earlier : std::exchange(pending_, {&bucket})) send(*earlier);
  if (full.is_last()) {
    for (Bucket* const last : std::exchange(pending_, {})) send(*last);
  }
  return {{}, bucket.own_bytes, bucket.own_bytes * (size - 1)};
}

// On a stream of its own, since the host waits for it, and must not for what comes behind.
void HostExchange::send(Bucket& bucket) {
  on_device([&] {
    const torch::NoGradGuard no_grad;
    if (!to_host_) to_host_ = new_stream(device_);
    bucket.encoded->let_wait(*to_host_);
    const c10::StreamGuard reading(*to_host_);
    const ConstByteSpan to = bucket.host.bytes().first(bucket.extracts.nbytes());
    tensor_of(to, torch::kCPU).copy_(bucket.extracts);
    bucket.extracts.reset();
  });
  // Not before: now the device has read what was there in the step before.
  const auto size = static_cast<std::size_t>(communicator_->size());
  make_room(bucket.all, bucket.own_bytes * size, *communicator_, device_);
  const ByteSpan all = bucket.all.bytes().first(bucket.own_bytes * size);
  const auto rank = static_cast<std::size_t>(communicator_->rank().value());
  const ByteSpan own = all.subspan(rank * bucket.own_bytes, bucket.own_bytes);
  if (!own.empty()) write_messages(bucket, own);
  bucket.sent = Clock::now();
  if (bucket.plain_bytes > 0) {
    const View plain(bucket.host.bytes().data(),
                     bucket.plain_bytes / size_bytes(bucket.plain_dtype), bucket.plain_dtype);
    bucket.plain_work =
        communicator_->all_reduce(plain, {.op = bucket.op, .timeout = bucket.timeout});
  }
  if (own.empty()) return;
  bucket.work = communicator_->all_gather(own, all, {.timeout = bucket.timeout});
}

void HostExchange::write_messages(Bucket& bucket, ByteSpan own) const {
  const auto* indices =
      reinterpret_cast<const std::uint32_t*>(bucket.host.bytes().data() + bucket.plain_bytes);
  std::size_t all_indices = 0;
  for (const PlacedExtract& placed : bucket.own.extracts) all_indices += placed.how.greatest;
  const auto* numbers = reinterpret_cast<const std::byte*>(indices + all_indices);
  for (const PlacedExtract& placed : bucket.own.extracts) {
    const codec::Extract extract{{indices, placed.how.greatest},
                                 {numbers, placed.how.number_bytes(placed.count)}};
    indices += extract.indices.size();
    numbers += extract.numbers.size();
    const std::size_t bytes = message_bytes(placed, bucket.position);
    codec_->encode_extract(extract, placed.count, bucket.position, own.first(bytes));
    own = own.subspan(bytes);
  }
}

codec::Extract HostExchange::decode(const Bucket& bucket, std::size_t extract, int rank,
                                    ConstByteSpan rest) {
  const std::size_t count = bucket.own.extracts[extract].count;
  const auto said = codec_->decode_extract(rest, bucket.position, scratch_, count);
  if (!said.ok()) {
    const Status status(
        said.status().code(),
        fmt::format("gradient {} of rank {}, in step {}: {}", bucket.own.names[extract], rank,
                    bucket.position.step + 1, said.status().message()),
        rank);
    communicator_->abort(std::string(status.message()));  // Only this rank may have seen it.
    status.or_throw();
  }
  return said.value();
}

// Of rank 0 all extracts, of rank 1, and so on.
std::vector<HostExchange::Said> HostExchange::read_messages(const Bucket& bucket, Upload& upload) {
  std::vector<Said> all;
  std::vector<std::int64_t> indices;
  ConstByteSpan rest = bucket.messages_of(communicator_->size());
  for (int rank = 0; !rest.empty(); ++rank) {
    for (std::size_t i = 0; i < bucket.own.extracts.size(); ++i) {
      const PlacedExtract& placed = bucket.own.extracts[i];
      const codec::Extract extract = decode(bucket, i, rank, rest);
      Said& said = all.emplace_back(Said{{}, upload.in_messages(extract.numbers)});
      if (placed.how.greatest > 0) {
        indices.clear();
        for (const std::uint32_t index : extract.indices) {
          indices.push_back(static_cast<std::int64_t>(placed.first + index));
        }
        said.indices = upload.append(std::as_bytes(std::span(indices)));
      }
      rest = rest.subspan(message_bytes(placed, bucket.position));
    }
  }
  return all;
}

TimePoint HostExchange::wait(const FullBucket& full) {
  Bucket& bucket = *buckets_[full.index];
  bucket.plain_work.wait();
  bucket.work.wait();
  return bucket.sent;
}

void HostExchange::finish(const FullBucket& full) {
  Bucket& bucket = *buckets_[full.index];
  on_device([&] {
    const torch::NoGradGuard no_grad;
    Upload upload(bucket.messages_of(communicator_->size()), bucket.up);
    const std::vector<Said> all = read_messages(bucket, upload);
    const Upload::Place plain = upload.append(bucket.host.bytes().first(bucket.plain_bytes));
    upload.copy_to(device_);
    bucket.uploaded.emplace(device_);
    bucket.uploaded->record(current_stream(device_));
    std::vector<std::vector<PlacedExtract>> of_ranks;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const PlacedExtract& own = bucket.own.extracts[i % bucket.own.extracts.size()];
      if (i % bucket.own.extracts.size() == 0) of_ranks.emplace_back();
      PlacedExtract placed{{}, own.how, own.first, own.count};
      if (all[i].indices) placed.extract.indices = upload.part(*all[i].indices).view(torch::kLong);
      placed.extract.numbers = upload.part(all[i].numbers);
      of_ranks.back().push_back(std::move(placed));
    }
    put_together(full, device_, of_ranks, bucket.own.plain, upload.part(plain));
  });
  full.memory->publish();
}

}  // namespace

std::unique_ptr<ExtractExchange> exchange_by_host(std::shared_ptr<const Codec> codec,
                                                  torch::Device device) {
  return std::make_unique<HostExchange>(std::move(codec), device);
}

}  // namespace stretto::ddp
