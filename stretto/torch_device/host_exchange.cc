// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <numeric>
#include <utility>

#include "stretto/base/round_up.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/compressed_exchange.h"
#include "stretto/torch_device/device_tensors.h"
#include "stretto/torch_device/extract_exchange.h"
#include "stretto/torch_device/extract_share.h"
#include "stretto/torch_device/host_copies.h"
#include "stretto/torch_device/streams.h"

namespace stretto::ddp {
namespace {

constexpr std::size_t kWidest = 16;  // Bytes of an element; elements are aligned to their width.

// Bytes of the host that go to the device in two copies: messages, and other bytes that are
// appended to them. Both must stay where they are until the device has them.
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

struct HostBucket {
  std::size_t total_bytes() const { return std::reduce(lengths.begin(), lengths.end()); }
  ByteSpan messages() const { return all.bytes().first(total_bytes()); }
  // The messages of one rank.
  ByteSpan messages_of(std::size_t rank) const {
    const auto length = lengths.begin() + static_cast<std::ptrdiff_t>(rank);
    return all.bytes().subspan(std::reduce(lengths.begin(), length), *length);
  }

  BucketExtracts own;
  codec::Position position;
  DType plain_dtype = DType::f32;
  torch::Tensor extracts;  // Their bytes, behind the plain ones; until the host has them.
  std::optional<DeviceEvent> encoded;
  Memory host;
  std::size_t plain_bytes = 0;
  Memory all;                        // Messages: of rank 0, of rank 1, and so on.
  std::vector<std::size_t> lengths;  // Of each rank's messages.
  std::vector<std::byte> up;         // Other bytes that the device reads.
  // It ends before the next step's messages are encoded, as that is behind what this step has
  // written.
  CopiesFromHost uploaded;
  ReduceOp op = ReduceOp::mean;
  std::optional<Duration> timeout;
  TimePoint sent;
  Work lengths_work;
  Work plain_work;
  Work work;
};

class HostExchange final : public ExchangeByBucket<HostBucket> {
 public:
  HostExchange(std::shared_ptr<const Codec> codec, torch::Device device)
      : ExchangeByBucket(device),
        codec_(std::move(codec)),
        has_fixed_length_(codec_->has_fixed_length()) {}

  std::string_view name() const override { return ""; }
  StartedExchange start(const FullBucket& full, BucketExtracts own,
                        const codec::Position& position) override;
  ExchangedExtracts wait(const FullBucket& full) override;
  void finish(const FullBucket& full) override;

 private:
  // An extract from a message, which is to be copied to the device.
  struct Said {
    PlacedExtract placed;
    std::optional<Upload::Place> indices;
    Upload::Place numbers;
  };

  std::size_t message_bytes(const PlacedExtract& placed) const {
    return codec_->extract_bytes(placed.count, placed.elements);
  }
  void make_room(Memory& memory, std::size_t bytes) const;
  void collect(HostBucket& bucket) const;
  void announce(HostBucket& bucket) const;
  Duration receive_lengths(HostBucket& bucket) const;
  Duration send(HostBucket& bucket);
  void write_messages(HostBucket& bucket, ByteSpan own) const;
  codec::Extract decode(const HostBucket& bucket, std::size_t extract, std::size_t rank,
                        ConstByteSpan rest);
  std::vector<Said> read_messages(const HostBucket& bucket, std::size_t rank, Upload& upload);

  const std::shared_ptr<const Codec> codec_;
  const bool has_fixed_length_;  // Messages have one; else ranks tell each other.
  CopiesToHost to_host_{device_};
  codec::Scratch scratch_;
};

// Makes `memory`, for copies to the device and back, at least `bytes` long. Longer if lengths vary,
// since page-locking memory takes as long as writing it.
void HostExchange::make_room(Memory& memory, std::size_t bytes) const {
  if (memory.bytes().size() >= bytes) return;
  make_anew(memory, bytes + (has_fixed_length_ ? 0 : bytes / 4), *communicator_, device_);
}

// Collects the data for the host in one vector: gradients that travel as they are, all indices,
// which the host can read there because they are aligned, and all numbers.
void HostExchange::collect(HostBucket& bucket) const {
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
  HostBucket& bucket = bucket_of(full);
  bucket.own = std::move(own);
  bucket.position = position;
  bucket.plain_dtype = full.view.dtype;
  bucket.op = full.op;
  bucket.timeout = full.timeout;
  on_device([&] { collect(bucket); });
  full.memory->publish();
  bucket.plain_bytes = 0;
  for (const View& view : bucket.own.plain) bucket.plain_bytes += view.bytes();
  announce(bucket);
  make_room(bucket.host, bucket.extracts.nbytes());
  StartedExchange started;
  // While the device works on this one.
  for (HostBucket* const earlier : std::exchange(pending_, {&bucket}))
    started.waited += send(*earlier);
  if (full.is_last()) {
    for (HostBucket* const last : std::exchange(pending_, {})) started.waited += send(*last);
  }
  return started;
}

void HostExchange::announce(HostBucket& bucket) const {
  std::size_t own = 0;
  for (const PlacedExtract& each : bucket.own.extracts) own += message_bytes(each);
  bucket.lengths.assign(ranks(), own);
  if (has_fixed_length_ || own == 0) return;
  const auto all = std::as_writable_bytes(std::span(bucket.lengths));
  bucket.lengths_work =
      communicator_->all_gather(all.subspan(rank() * sizeof(std::size_t), sizeof(std::size_t)), all,
                                {.timeout = bucket.timeout});
}

// Returns how long it has waited for them.
Duration HostExchange::receive_lengths(HostBucket& bucket) const {
  if (has_fixed_length_) return {};
  const TimePoint begin = Clock::now();
  bucket.lengths_work.wait();
  const Duration waited = Clock::now() - begin;
  std::size_t longest = 0;
  for (const PlacedExtract& each : bucket.own.extracts) {
    longest += codec_->max_message_bytes(each.count);
  }
  for (std::size_t from = 0; from < bucket.lengths.size(); ++from) {
    check_announced(*communicator_, bucket.lengths[from], longest, from);
  }
  return waited;
}

Duration HostExchange::send(HostBucket& bucket) {
  on_device([&] {
    const torch::NoGradGuard no_grad;
    to_host_.move(bucket.extracts, *bucket.encoded,
                  bucket.host.bytes().first(bucket.extracts.nbytes()));
  });
  const Duration waited = receive_lengths(bucket);
  // Not earlier: only now has the device read the messages of the step before.
  make_room(bucket.all, bucket.total_bytes());
  const ByteSpan own = bucket.messages_of(rank());
  if (!own.empty()) write_messages(bucket, own);
  bucket.sent = Clock::now();
  if (bucket.plain_bytes > 0) {
    const View plain(bucket.host.bytes().data(),
                     bucket.plain_bytes / size_bytes(bucket.plain_dtype), bucket.plain_dtype);
    bucket.plain_work =
        communicator_->all_reduce(plain, {.op = bucket.op, .timeout = bucket.timeout});
  }
  if (own.empty()) return waited;
  AllGatherOptions options{.timeout = bucket.timeout};
  if (!has_fixed_length_) options.counts = bucket.lengths;
  bucket.work = communicator_->all_gather(own, bucket.messages(), options);
  return waited;
}

void HostExchange::write_messages(HostBucket& bucket, ByteSpan own) const {
  const auto* indices =
      reinterpret_cast<const std::uint32_t*>(bucket.host.bytes().data() + bucket.plain_bytes);
  std::size_t index_bytes = 0;
  for (const PlacedExtract& placed : bucket.own.extracts) index_bytes += placed.index_bytes();
  const auto* numbers = reinterpret_cast<const std::byte*>(indices) + index_bytes;
  for (const PlacedExtract& placed : bucket.own.extracts) {
    const codec::Extract extract{{indices, placed.index_bytes() / sizeof(std::uint32_t)},
                                 {numbers, placed.number_bytes()}};
    indices += extract.indices.size();
    numbers += extract.numbers.size();
    const std::size_t bytes = message_bytes(placed);
    codec_->encode_extract(extract, placed.count, bucket.position, own.first(bytes));
    own = own.subspan(bytes);
  }
}

codec::Extract HostExchange::decode(const HostBucket& bucket, std::size_t extract, std::size_t rank,
                                    ConstByteSpan rest) {
  const std::size_t count = bucket.own.extracts[extract].count;
  const auto said = codec_->decode_extract(rest, bucket.position, scratch_, count);
  if (!said.ok()) {
    const std::size_t named = reducer::job_rank(*communicator_, rank);
    reducer::abort_and_throw(*communicator_, said.status().code(), named,
                             "gradient {} of rank {}, in step {}: {}", bucket.own.names[extract],
                             named, bucket.position.step + 1, said.status().message());
  }
  return said.value();
}

std::vector<HostExchange::Said> HostExchange::read_messages(const HostBucket& bucket,
                                                            std::size_t rank, Upload& upload) {
  std::vector<Said> all;
  std::vector<std::int64_t> indices;
  ConstByteSpan rest = bucket.messages_of(rank);
  for (std::size_t i = 0; i < bucket.own.extracts.size(); ++i) {
    const codec::Extract extract = decode(bucket, i, rank, rest);
    Said& said =
        all.emplace_back(Said{bucket.own.extracts[i], {}, upload.in_messages(extract.numbers)});
    said.placed.elements = extract.has_all() ? said.placed.count : extract.indices.size();
    if (!extract.has_all()) {
      indices.clear();
      for (const std::uint32_t index : extract.indices) {
        indices.push_back(static_cast<std::int64_t>(said.placed.first + index));
      }
      said.indices = upload.append(std::as_bytes(std::span(indices)));
    }
    rest = rest.subspan(message_bytes(said.placed));
  }
  if (!rest.empty()) {
    const std::size_t named = reducer::job_rank(*communicator_, rank);
    reducer::abort_and_throw(*communicator_, StatusCode::protocol, named,
                             "behind the messages of rank {}, in step {}, there are {} bytes more",
                             named, bucket.position.step + 1, rest.size());
  }
  return all;
}

ExchangedExtracts HostExchange::wait(const FullBucket& full) {
  HostBucket& bucket = *buckets_[full.index];
  bucket.plain_work.wait();
  bucket.work.wait();
  const std::size_t own = bucket.lengths[rank()];
  return {bucket.sent, own, bucket.messages().size() - own};
}

void HostExchange::finish(const FullBucket& full) {
  HostBucket& bucket = *buckets_[full.index];
  on_device([&] {
    const torch::NoGradGuard no_grad;
    Upload upload(bucket.messages(), bucket.up);
    std::vector<std::vector<Said>> said(bucket.lengths.size());
    for (std::size_t from = 0; from < said.size(); ++from) {
      said[from] = read_messages(bucket, from, upload);
    }
    const Upload::Place plain = upload.append(bucket.host.bytes().first(bucket.plain_bytes));
    upload.copy_to(device_);
    bucket.uploaded.record(device_);
    std::vector<std::vector<PlacedExtract>> of_ranks;
    for (std::vector<Said>& of_rank : said) {
      if (of_rank.empty()) break;
      std::vector<PlacedExtract>& extracts = of_ranks.emplace_back();
      for (Said& each : of_rank) {
        DeviceExtract& extract = each.placed.extract;
        if (each.indices) extract.indices = upload.part(*each.indices).view(torch::kLong);
        extract.numbers = upload.part(each.numbers);
        extracts.push_back(std::move(each.placed));
      }
    }
    put_together(full, device_, of_ranks, bucket.own.plain, upload.part(plain));
  });
  full.memory->publish();
  if (full.is_last()) buckets_.resize(full.index + 1);
}

}  // namespace

std::unique_ptr<ExtractExchange> exchange_by_host(std::shared_ptr<const Codec> codec,
                                                  torch::Device device) {
  return std::make_unique<HostExchange>(std::move(codec), device);
}

}  // namespace stretto::ddp
