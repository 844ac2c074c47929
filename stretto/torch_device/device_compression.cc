// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch_device/device_compression.h"

#include <utility>

#include <fmt/format.h>

#include "stretto/base/check.h"
#include "stretto/base/content_hash.h"
#include "stretto/base/refuse.h"
#include "stretto/codec/header.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/compressed_exchange.h"
#include "stretto/reducer/saved_state.h"
#include "stretto/torch_device/device_tensors.h"
#include "stretto/torch_device/streams.h"

namespace stretto::ddp {
namespace {

// Values in memory of the host, as a vector that does not keep them alive.
torch::Tensor host_tensor_of(std::span<const float> values) {
  return tensor_of({std::as_bytes(values).data(), values.size(), DType::f32}, torch::kCPU);
}

}  // namespace

bool CompressedDeviceBuckets::is_zero(ConstByteSpan bytes) const {
  bool is_zero = true;
  on_device([&] {
    const torch::NoGradGuard no_grad;
    let_wait(current_stream(device()), default_stream(device()));
    is_zero = !tensor_of(bytes, device()).any().item<bool>();
  });
  return is_zero;
}

DeviceCompression::DeviceCompression(std::shared_ptr<const Compressor> compressor,
                                     torch::Device device,
                                     std::unique_ptr<ExtractExchange> exchange)
    : compressor_(std::move(compressor)),
      codec_(dynamic_cast<const Codec*>(compressor_.get())),
      device_(device),
      exchange_(std::move(exchange)) {}

DeviceCompression::~DeviceCompression() = default;

bool DeviceCompression::compresses(const GradientDescription& gradient) {
  return gradient.dtype == DType::f32 && gradient.count >= CompressionOptions::kMinElements;
}

std::string DeviceCompression::name() const {
  return fmt::format("compressed on a device, {}version {}: {}", exchange_->name(),
                     codec::Header::kVersion, compressor_->name());
}

codec::Position DeviceCompression::position() const {
  return {.step = step_ - 1, .context_hash = codec::settings_of(name())};
}

void DeviceCompression::attach(Communicator& communicator,
                               std::span<const GradientDescription> gradients) {
  reducer::check_same_hook(communicator, name(), timeout());
  communicator_ = &communicator;
  rank_ = static_cast<std::size_t>(communicator.rank().value());
  ranks_ = static_cast<std::size_t>(communicator.size());
  exchange_->attach(communicator);
  // A step that has failed may have left incomplete residuals.
  if (std::exchange(is_open_, false) && exchange_->spoils_residuals()) {
    for (auto& [name, gradient] : gradients_) gradient.residual = {};
  }
  by_index_.clear();
  bucket_step_.reset();
  for (const GradientDescription& description : gradients) {
    by_index_.push_back(nullptr);
    const bool is_dense = codec_ != nullptr && !codec_->extraction(description.count, {});
    if (is_dense || !compresses(description) || !exchange_->describe(description)) continue;
    Gradient& gradient = gradients_[description.name];
    if (gradient.count != description.count) gradient = {description.name, description.count};
    gradient.key = content_hash(std::as_bytes(std::span(description.name)));
    by_index_.back() = &gradient;
  }
  const auto take_over = [this] {
    if (loaded_) restore(*loaded_);
    return reducer::ResumePoint{step_, 0};
  };
  step_ = reducer::take_over_together(communicator, name(), take_over, timeout()).step;
  loaded_.reset();
}

// How to take out what `adder` adds up of a gradient, or (`of_sum`) of the sum of that.
codec::Extraction DeviceCompression::extraction_of(std::size_t gradient, std::size_t adder,
                                                   bool of_sum) const {
  const Gradient& own = *by_index_[gradient];
  const bool is_cut = exchange_->divides() && are_worth_parts(own.count, ranks_);
  const std::uint64_t part = is_cut ? adder + 1 : 0;
  return *codec_->extraction(
      own.count,
      {.step = step_ - 1, .own_key = own_key(own.key, part, rank_ + (of_sum ? ranks_ : 0))});
}

// The extracts of a gradient that begins at element `first` of the bucket: one for each rank that
// adds up a part of it, or one of the whole. `carry` becomes the rest. Numbers that share no scale
// are extracted all at once, and then cut into parts.
std::vector<PlacedExtract> DeviceCompression::take_out(torch::Tensor carry, std::size_t gradient,
                                                       std::size_t first) const {
  const auto count = static_cast<std::size_t>(carry.numel());
  const std::size_t adders = exchange_->divides() ? ranks_ : 1;
  const codec::Extraction how = extraction_of(gradient, 0, false);
  const bool is_cut = adders > 1 && how.block == 0;
  const torch::Tensor numbers =
      is_cut ? extract_from(carry, how, first).extract.numbers : torch::Tensor();
  std::vector<PlacedExtract> parts;
  for (std::size_t adder = 0; adder < adders; ++adder) {
    const AddedPart part = part_added_by(adder, count, owner_of(gradient, adders), adders);
    if (is_cut) {
      parts.push_back({.extract = {.numbers = part_of(numbers, how.number_bytes(part.first),
                                                      how.number_bytes(part.count))},
                       .how = how,
                       .first = first + part.first,
                       .count = part.count,
                       .elements = part.count});
    } else {
      torch::Tensor of_part = part_of(carry, part.first, part.count);
      parts.push_back(
          extract_from(of_part, extraction_of(gradient, adder, false), first + part.first));
    }
  }
  return parts;
}

// Runs behind the work of the calling thread's current stream and of the default stream.
void DeviceCompression::extract(const FullBucket& full, std::size_t i, Gradient& gradient,
                                BucketExtracts& own) {
  const View& view = full.gradient_views[i];
  const torch::Tensor values = tensor_of(view, device_);
  if (gradient.residual.bytes().empty()) {
    gradient.residual = full.memory->allocate_copy(view.bytes());
    if (!gradient.loaded.empty()) residual_of(gradient).copy_(host_tensor_of(gradient.loaded));
    gradient.loaded.clear();
  }
  const bool is_silent = full.is_silent(i), divides = exchange_->divides();
  // Of a silent gradient, the rank that adds up a part may keep something. And if the sum of its
  // factors cannot be multiplied, all ranks clear its residual.
  const bool may_change = full.is_uncomputed(i) && (!is_silent || divides || codec_ == nullptr);
  const torch::Tensor residual = residual_of(gradient);
  gradient.before = may_change ? residual.clone() : torch::Tensor();
  const std::size_t first = static_cast<std::size_t>(view.data - full.view.data) / sizeof(float);
  this_step_.elements += view.count;
  this_step_.gradient_bytes += view.bytes();
  if (codec_ == nullptr) {
    if (!is_silent) torch::Tensor(residual).add_(values);
    own.residuals.push_back({residual, is_silent, first});
    return;
  }
  const torch::Tensor carry = is_silent ? torch::zeros_like(values) : residual.add_(values);
  for (PlacedExtract& placed : take_out(carry, full.gradients[i], first)) {
    this_step_.sent_values += placed.elements;
    own.extracts.push_back(std::move(placed));
  }
  if (!divides) return;
  const AddedPart part =
      part_added_by(rank_, view.count, owner_of(full.gradients[i], ranks_), ranks_);
  if (part.count == 0) return;
  own.residuals.push_back({part_of(residual, part.first, part.count), is_silent, first + part.first,
                           extraction_of(full.gradients[i], rank_, true)});
  this_step_.sent_values += part.count;  // The sum's values.
}

BucketExtracts DeviceCompression::extract_all(const FullBucket& full) {
  const torch::NoGradGuard no_grad;
  let_wait(current_stream(device_), default_stream(device_));
  BucketExtracts own;
  for (std::size_t i = 0; i < full.gradients.size(); ++i) {
    if (Gradient* const gradient = by_index_[full.gradients[i]]) {
      extract(full, i, *gradient, own);
      own.names.push_back(gradient->name);
    } else {
      own.plain.push_back(full.gradient_views[i]);
    }
  }
  return own;
}

// A residual changes where the gradient was not silent, or this rank has added up a part.
void DeviceCompression::forget(std::span<const std::size_t> gradients) {
  on_device([&] {
    const torch::NoGradGuard no_grad;
    let_wait(current_stream(device_), default_stream(device_));
    for (const std::size_t index : gradients) {
      Gradient* const gradient = by_index_[index];
      if (gradient == nullptr) continue;
      exchange_->forget(gradient->name);
      if (!gradient->before.defined()) continue;
      residual_of(*gradient).copy_(std::exchange(gradient->before, torch::Tensor()));
    }
    let_wait(default_stream(device_), current_stream(device_));
  });
}

std::vector<std::byte> DeviceCompression::save() const {
  if (loaded_) return *loaded_;
  if (is_open_ && exchange_->spoils_residuals()) {
    refuse("the last step has failed in the middle, and what compression has kept is not whole");
  }
  reducer::SavedState state{.step = step_, .rank = rank_, .ranks = ranks_};
  on_device([&] {
    const torch::NoGradGuard no_grad;
    let_wait(current_stream(device_), default_stream(device_));
    for (const auto& [name, gradient] : gradients_) {
      const std::span<const float> kept = exchange_->kept(name);
      if (!kept.empty()) state.factors[name].assign(kept.begin(), kept.end());
      if (!gradient.loaded.empty()) state.residuals[name] = gradient.loaded;
      if (gradient.residual.bytes().empty()) continue;
      std::vector<float>& residual = state.residuals[name];
      residual.resize(gradient.count);
      host_tensor_of(residual).copy_(residual_of(gradient));
    }
  });
  return reducer::print(state);
}

void DeviceCompression::load(std::span<const std::byte> state) {
  if (communicator_ == nullptr) {
    loaded_.emplace(state.begin(), state.end());
    return;
  }
  restore(state);
  loaded_.reset();
}

// Gradients that the state does not mention begin anew.
void DeviceCompression::restore(std::span<const std::byte> saved) {
  const reducer::SavedState state = reducer::parse(reducer::state_at({}, saved));
  reducer::check_compressed(state, static_cast<int>(rank_), static_cast<int>(ranks_),
                            [this](const std::string& name) { return gradients_.contains(name); });
  for (const auto& [name, gradient] : gradients_) {
    (void)reducer::find(state.residuals, name, gradient.count);
    const std::size_t kept = exchange_->kept(name).size();
    if (kept > 0) (void)reducer::find(state.factors, name, kept);
  }
  step_ = state.step;
  is_open_ = false;
  for (auto& [name, gradient] : gradients_) {
    const auto* const residual = reducer::find(state.residuals, name, gradient.count);
    gradient.residual = {};  // Made anew in the next step.
    gradient.loaded = residual != nullptr ? *residual : std::vector<float>();
    const auto kept = state.factors.find(name);
    exchange_->keep(name, kept != state.factors.end() ? &kept->second : nullptr);
  }
}

torch::Tensor DeviceCompression::residual_of(const Gradient& gradient) const {
  return tensor_of({gradient.residual.bytes().data(), gradient.count, DType::f32}, device_);
}

Work DeviceCompression::start(Communicator& communicator, const FullBucket& full) {
  if (full.op != ReduceOp::sum && full.op != ReduceOp::mean) {
    refuse("{} of compressed gradients has no meaning; sum and mean have", stretto::name(full.op));
  }
  STRETTO_CHECK(communicator_ == &communicator, "attach() with this communicator comes first");
  const TimePoint begin = Clock::now();
  if (std::exchange(bucket_step_, full.step) != full.step) {
    begin_statistics(this_step_, ++step_, true, full.of_count);
    is_open_ = true;
  }
  BucketExtracts own;
  on_device([&] { own = extract_all(full); });
  const bool is_compressed = !own.names.empty();
  StartedExchange started = exchange_->start(full, std::move(own), position());
  this_step_.buckets += is_compressed ? 1 : 0;
  // Not all users of the hook know from the beginning how many buckets a step has.
  if (this_step_.choices.size() <= full.index) this_step_.choices.resize(full.index + 1);
  BucketCompression& choice = this_step_.choices[full.index];
  choice.compressed = is_compressed;
  choice.reason = is_compressed
                      ? CompressionReason::always
                      : reason_without_codec(full.gradient_views, CompressionOptions::kMinElements);
  choice.codec_seconds = seconds(Clock::now() - begin - started.waited);
  this_step_.encode_seconds += choice.codec_seconds;
  return std::move(started.work);
}

void DeviceCompression::finish(const FullBucket& full) {
  const ExchangedExtracts exchanged = exchange_->wait(full);
  const TimePoint begin = Clock::now();
  this_step_.exchange_seconds += seconds(begin - exchanged.sent);
  this_step_.message_bytes += exchanged.sent_bytes;
  this_step_.received_bytes += exchanged.received_bytes;
  this_step_.sent_values += exchanged.factors;
  exchange_->finish(full);
  const double spent = seconds(Clock::now() - begin);
  this_step_.decode_seconds += spent;
  this_step_.choices[full.index].codec_seconds += spent;
  if (!full.is_last()) return;
  last_step_ = this_step_;
  is_open_ = false;
}

}  // namespace stretto::ddp
