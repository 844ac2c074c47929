// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/device_compression.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>

#include "stretto/base/check.h"
#include "stretto/base/log.h"
#include "stretto/base/refuse.h"
#include "stretto/codec/header.h"
#include "stretto/communicator/page_locked.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/compressed_exchange.h"
#include "stretto/torch/device_extraction.h"
#include "stretto/torch/device_tensors.h"
#include "stretto/torch/streams.h"

namespace stretto::ddp {
namespace {

// With fewer elements, gradients travel as they are.
bool is_compressed(DType dtype, std::size_t count) {
  static const std::size_t least = CompressionOptions().min_elements;
  return dtype == DType::f32 && count >= least;
}

// Of the host, for what goes to the device or comes from there, at least so long.
void make_room(Memory& memory, std::size_t bytes, Communicator& communicator,
               torch::Device device) {
  if (memory.bytes().size() >= bytes) return;
  memory = {};
  memory = page_locked(communicator.allocate_bytes(bytes), device.index());
}

}  // namespace

bool CompressedDeviceBuckets::is_zero(ConstByteSpan bytes) const {
  bool is_zero = true;
  on_device([&] {
    const torch::NoGradGuard no_grad;
    let_wait(current_stream(device_), default_stream(device_));
    is_zero = !tensor_of(bytes, device_).any().item<bool>();
  });
  return is_zero;
}

struct DeviceCompression::Item {
  Gradient* gradient = nullptr;  // Null: it travels as it is.
  View view;
  bool is_silent = false;
  bool is_uncomputed = false;
  std::size_t taken_out = 0;  // Elements; of a codec that rounds none.
  std::size_t at = 0;         // Where in Bucket::host that begins which stands for it.
  std::size_t bytes = 0;      // Of that.
};

struct DeviceCompression::Bucket {
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

  codec::Extract extract_of(const Item& item) const {
    std::byte* const from = host.bytes().data() + item.at;
    const std::size_t taken = item.taken_out;
    if (taken == 0) return {.numbers = {from, item.bytes}};
    return {.indices = {reinterpret_cast<const std::uint32_t*>(from), taken},
            .values = {reinterpret_cast<float*>(from) + taken, taken}};
  }
  ConstByteSpan messages_of(int ranks) const {
    return all.bytes().first(own_bytes * static_cast<std::size_t>(ranks));
  }

  std::vector<Item> items;  // Those that travel as they are come first.
  View plain;               // They, in memory of the host.
  torch::Tensor extracts;   // Of the device, until the host has them.
  std::optional<c10::Event> encoded;
  Memory host;
  Memory all;                 // Messages: of rank r, share r.
  std::size_t own_bytes = 0;  // Of a share.
  std::vector<std::byte> up;  // What else the device reads.
  // Before the next step's messages are encoded, as that is behind what this step has written.
  std::optional<c10::Event> uploaded;
  ReduceOp op = ReduceOp::mean;
  std::optional<Duration> timeout;
  TimePoint sent;
  Work plain_work;
  Work work;
};

std::shared_ptr<DeviceCompression> DeviceCompression::create(
    const std::shared_ptr<const Compressor>& compressor, const std::vector<NamedTensor>& parameters,
    int ranks) {
  const auto codec = std::dynamic_pointer_cast<const Codec>(compressor);
  const bool has_extraction = codec != nullptr && codec->extraction(1, 0).has_value();
  // In steps of a warm-up messages may be so long that they are not gathered.
  if (!has_extraction || codec->warm_up_steps() > 0) return nullptr;
  std::size_t of_messages = 0, of_gradients = 0;
  for (const NamedTensor& parameter : parameters) {
    const auto count = static_cast<std::size_t>(parameter.tensor.numel());
    const bool is_f32 = parameter.tensor.scalar_type() == torch::kFloat;
    if (!is_f32 || !is_compressed(DType::f32, count)) continue;
    if (count >> 32 != 0) return nullptr;
    of_messages += *codec->message_bytes(count, 0);
    of_gradients += count * sizeof(float);
  }
  const auto size = static_cast<std::size_t>(ranks);
  const bool is_divided = ranks > 2 && gathers_as_much(of_messages, of_gradients, size);
  if (of_gradients == 0 || is_divided) return nullptr;
  return std::make_shared<DeviceCompression>(codec, parameters.front().tensor.device());
}

DeviceCompression::DeviceCompression(std::shared_ptr<const Codec> codec, torch::Device device)
    : codec_(std::move(codec)), device_(device) {}

DeviceCompression::~DeviceCompression() = default;

std::string DeviceCompression::name() const {
  return fmt::format("compressed on a device, version {}: {}", codec::Header::kVersion,
                     codec_->name());
}

codec::Position DeviceCompression::position() const {
  return {.step = step_ - 1, .context_hash = codec::settings_of(name())};
}

void DeviceCompression::attach(Communicator& communicator,
                               std::span<const GradientDescription> gradients) {
  communicator_ = &communicator;
  by_index_.clear();
  buckets_.clear();
  pending_.clear();
  bucket_step_.reset();
  for (const GradientDescription& description : gradients) {
    by_index_.push_back(nullptr);
    if (!is_compressed(description.dtype, description.count)) continue;
    Gradient& gradient = gradients_[description.name];
    if (gradient.count != description.count) gradient = {description.name, description.count, {}};
    by_index_.back() = &gradient;
  }
  const auto step = [this] { return reducer::ResumePoint{step_, 0}; };
  step_ = reducer::take_over_together(communicator, name(), step, timeout()).step;
}

// Behind what the calling thread has begun, and the default stream.
torch::Tensor DeviceCompression::extract(const FullBucket& full, Item& item) {
  Gradient& gradient = *item.gradient;
  const torch::Tensor values = tensor_of(item.view, device_);
  if (gradient.residual.bytes().empty()) {
    gradient.residual = full.memory->allocate_copy(item.view.bytes());
  }
  const bool may_change = item.is_uncomputed && !item.is_silent;
  gradient.before = may_change ? residual_of(gradient).clone() : torch::Tensor();
  torch::Tensor carry =
      item.is_silent ? torch::zeros_like(values) : residual_of(gradient).add_(values);
  const codec::Extraction how = *codec_->extraction(item.view.count, step_ - 1);
  item.taken_out = how.greatest;
  const torch::Tensor extracted = extract_from(carry, how);
  this_step_.elements += item.view.count;
  this_step_.gradient_bytes += item.view.bytes();
  this_step_.sent_values += how.rounded ? item.view.count : how.greatest;
  return extracted;
}

// A residual changes where the gradient was not silent, and nowhere else.
void DeviceCompression::forget(std::span<const std::size_t> gradients) {
  on_device([&] {
    const torch::NoGradGuard no_grad;
    let_wait(current_stream(device_), default_stream(device_));
    for (const std::size_t index : gradients) {
      Gradient* const gradient = by_index_[index];
      if (gradient == nullptr || !gradient->before.defined()) continue;
      residual_of(*gradient).copy_(std::exchange(gradient->before, torch::Tensor()));
    }
    let_wait(default_stream(device_), current_stream(device_));
  });
}

torch::Tensor DeviceCompression::residual_of(const Gradient& gradient) const {
  return tensor_of({gradient.residual.bytes().data(), gradient.count, DType::f32}, device_);
}

void DeviceCompression::encode(const FullBucket& full, Bucket& bucket) {
  const torch::NoGradGuard no_grad;
  const c10::Stream stream = current_stream(device_);
  let_wait(stream, default_stream(device_));
  bucket.items.clear();
  for (const bool has_codec : {false, true}) {
    for (std::size_t i = 0; i < full.gradients.size(); ++i) {
      Gradient* const gradient = by_index_[full.gradients[i]];
      if ((gradient != nullptr) != has_codec) continue;
      bucket.items.push_back(
          {gradient, full.gradient_views[i], full.is_silent(i), full.is_uncomputed(i)});
    }
  }
  std::vector<torch::Tensor> parts;
  std::size_t at = 0;
  std::size_t plain_bytes = 0;
  for (Item& item : bucket.items) {
    const bool is_plain = item.gradient == nullptr;
    parts.push_back(is_plain ? tensor_of(ConstByteSpan(item.view.span()), device_)
                             : extract(full, item));
    item.at = at;
    item.bytes = parts.back().nbytes();
    at += item.bytes;
    if (is_plain) plain_bytes = at;
  }
  make_room(bucket.host, at, *communicator_, device_);
  bucket.plain =
      View(bucket.host.bytes().data(), plain_bytes / size_bytes(full.view.dtype), full.view.dtype);
  bucket.extracts = torch::cat(parts);
  bucket.encoded.emplace(device_.type());
  bucket.encoded->record(stream);
  full.memory->written();
}

Work DeviceCompression::start(Communicator& communicator, const FullBucket& full) {
  if (full.op != ReduceOp::sum && full.op != ReduceOp::mean) {
    refuse("{} of compressed gradients has no meaning; sum and mean have", stretto::name(full.op));
  }
  STRETTO_CHECK(communicator_ == &communicator, "attach() with this communicator comes first");
  const TimePoint begin = Clock::now();
  if (std::exchange(bucket_step_, full.step) != full.step) {
    this_step_ = {.step = ++step_, .compressed = true};
  }
  while (buckets_.size() <= full.index) buckets_.push_back(std::make_unique<Bucket>());
  Bucket& bucket = *buckets_[full.index];
  bucket.op = full.op;
  bucket.timeout = full.timeout;
  on_device([&] { encode(full, bucket); });
  // While the device works on this one.
  for (Bucket* const earlier : std::exchange(pending_, {&bucket})) send(*earlier);
  if (full.is_last()) {
    for (Bucket* const last : std::exchange(pending_, {})) send(*last);
  }
  this_step_.encode_seconds += seconds(Clock::now() - begin);
  return {};
}

// On a stream of its own, since the host waits for it, and must not for what comes behind.
void DeviceCompression::send(Bucket& bucket) {
  on_device([&] {
    const torch::NoGradGuard no_grad;
    if (!to_host_) to_host_ = new_stream(device_);
    to_host_->wait(*bucket.encoded);
    const c10::StreamGuard reading(*to_host_);
    const ConstByteSpan to = bucket.host.bytes().first(bucket.extracts.nbytes());
    tensor_of(to, torch::kCPU).copy_(bucket.extracts);
    bucket.extracts.reset();
  });
  const ByteSpan own = write_messages(bucket);
  bucket.sent = Clock::now();
  if (bucket.plain.count > 0) {
    bucket.plain_work =
        communicator_->all_reduce(bucket.plain, {.op = bucket.op, .timeout = bucket.timeout});
  }
  if (own.empty()) return;
  const ConstByteSpan all = bucket.messages_of(communicator_->size());
  bucket.work = communicator_->all_gather(own, bucket.all.bytes().first(all.size()),
                                          {.timeout = bucket.timeout});
  ++this_step_.buckets;
  this_step_.message_bytes += own.size();
  this_step_.received_bytes += all.size() - own.size();
}

// To this rank's share of the messages.
ByteSpan DeviceCompression::write_messages(Bucket& bucket) {
  const auto length = [&](const Item& item) {
    const bool is_plain = item.gradient == nullptr;
    return is_plain ? 0 : *codec_->message_bytes(item.view.count, position().step);
  };
  bucket.own_bytes = 0;
  for (const Item& item : bucket.items) bucket.own_bytes += length(item);
  const auto size = static_cast<std::size_t>(communicator_->size());
  make_room(bucket.all, bucket.own_bytes * size, *communicator_, device_);
  const auto rank = static_cast<std::size_t>(communicator_->rank().value());
  const ByteSpan own = bucket.all.bytes().subspan(rank * bucket.own_bytes, bucket.own_bytes);
  std::size_t at = 0;
  for (const Item& item : bucket.items) {
    const std::size_t bytes = length(item);
    if (bytes == 0) continue;
    codec_->encode_extract(bucket.extract_of(item), item.view.count, position(),
                           own.subspan(at, bytes));
    at += bytes;
  }
  return own;
}

// In the order of ranks, as everywhere.
void DeviceCompression::add_messages(const FullBucket& full, const Bucket& bucket,
                                     const torch::Tensor& sums, Upload& upload) {
  ConstByteSpan rest = bucket.messages_of(communicator_->size());
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    for (const Item& item : bucket.items) {
      if (item.gradient == nullptr) continue;
      const auto extract = codec_->decode_extract(rest, position(), scratch_, item.view.count);
      if (!extract.ok()) {
        const Status status(
            extract.status().code(),
            fmt::format("gradient {} of rank {}, in step {}: {}", item.gradient->name, rank, step_,
                        extract.status().message()),
            rank);
        communicator_->abort(std::string(status.message()));  // Only this rank may have seen it.
        status.or_throw();
      }
      const codec::Extract& said = extract.value();
      if (item.taken_out > 0) {
        const auto first = static_cast<std::size_t>(item.view.data - full.view.data);
        upload.name(first / sizeof(float), said);
      } else {
        upload.add(tensor_of(item.view, device_), said.numbers,
                   *codec_->extraction(item.view.count, step_ - 1));
      }
      rest = rest.subspan(*codec_->message_bytes(item.view.count, step_ - 1));
    }
    upload.add_named(sums);
  }
}

// What this rank's messages do not say of what was taken out goes back, but what is no number.
void DeviceCompression::keep_rests(const Bucket& bucket, Upload& upload) const {
  for (const Item& item : bucket.items) {
    if (item.gradient == nullptr || item.taken_out == 0 || item.is_silent) continue;
    const codec::Extract own = bucket.extract_of(item);
    std::ranges::replace_if(
        own.values, [](float rest) { return !std::isfinite(rest); }, 0.0f);
    if (std::ranges::all_of(own.values, [](float rest) { return rest == 0; })) continue;
    upload.name(0, own);
    upload.set_named(residual_of(*item.gradient));
  }
}

void DeviceCompression::finish(const FullBucket& full) {
  Bucket& bucket = *buckets_[full.index];
  bucket.plain_work.wait();
  bucket.work.wait();
  const TimePoint begin = Clock::now();
  this_step_.exchange_seconds += seconds(begin - bucket.sent);
  on_device([&] {
    const torch::NoGradGuard no_grad;
    torch::Tensor sums = tensor_of(full.view, device_);
    Upload upload(bucket.messages_of(communicator_->size()), bucket.up);
    add_messages(full, bucket, sums, upload);
    keep_rests(bucket, upload);
    const std::byte* from = bucket.plain.data;
    for (const Item& item : bucket.items) {
      if (item.gradient != nullptr) break;
      upload.set(tensor_of(item.view, device_), {from, item.view.bytes()}, item.view.dtype);
      from += item.view.bytes();
    }
    upload.copy_to(device_);
    bucket.uploaded.emplace(device_.type());
    bucket.uploaded->record(current_stream(device_));
    if (bucket.own_bytes > 0) {
      sums.zero_();
      upload.run_additions();
      // By a number on the device: by one of the host, a GPU would multiply with its inverse.
      if (full.op == ReduceOp::mean) {
        sums.div_(torch::full({}, communicator_->size(), sums.options()));
      }
    }
    upload.run_settings();
    full.memory->written();
  });
  this_step_.decode_seconds += seconds(Clock::now() - begin);
  if (full.is_last()) last_step_ = this_step_;
}

}  // namespace stretto::ddp
