// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/compressed_reduction.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/check.h"
#include "stretto/base/content_hash.h"
#include "stretto/base/error.h"
#include "stretto/base/random.h"
#include "stretto/codec/arithmetic.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/compressed_gradient.h"
#include "stretto/reducer/compression_trial.h"
#include "stretto/reducer/saved_state.h"

namespace stretto {
namespace {

// Whether `pattern` stands for `name`: each * for any letters, everything else for itself.
bool fits(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  pattern.remove_prefix(star + 1);
  for (std::size_t first = star; first <= name.size(); ++first) {
    if (fits(pattern, name.substr(first))) return true;
  }
  return false;
}

std::span<float> floats(const View& view) {
  return {reinterpret_cast<float*>(view.data), view.count};
}

constexpr const char* kStateName = "compressed";

double squares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return sum;
}

}  // namespace

// A bucket on its way.
struct CompressedReduction::Exchange {
  bool is_compressed = false;
  TimePoint encoded;                   // When its messages were ready.
  std::vector<std::byte> own;          // The messages of this rank's gradients.
  std::vector<std::byte> all;          // Those of all ranks.
  std::vector<std::uint64_t> lengths;  // Of the ranks' parts of it.
  std::size_t limit = 0;               // For each of them.
  std::optional<Duration> timeout;
  Work first;   // The lengths, where they are not known.
  Work second;  // The messages, then.
};

CompressedReduction::CompressedReduction(CompressionOptions options)
    : options_(std::move(options)) {
  const auto is_null = [](const CompressionRule& rule) { return rule.codec == nullptr; };
  if (options_.codec == nullptr || std::ranges::any_of(options_.rules, is_null)) {
    throw InvalidArgument(status_of(StatusCode::invalid_argument,
                                    "a codec of CompressionOptions is null; dense() leaves "
                                    "gradients as they are"));
  }
  const auto grows = [&](const CompressionRule& rule) { return !rule.codec->is_contraction(); };
  if (options_.error_feedback &&
      (!options_.codec->is_contraction() || std::ranges::any_of(options_.rules, grows))) {
    throw InvalidArgument(
        status_of(StatusCode::invalid_argument,
                  "residuals of one_bit, stochastic, grow without bound; round to "
                  "the nearest, or set error_feedback = false"));
  }
  if (!(options_.momentum >= 0 && options_.momentum < 1) || !(options_.clip_norm >= 0)) {
    throw InvalidArgument(
        status_of(StatusCode::invalid_argument,
                  "CompressionOptions: momentum {}, clip_norm {}; the one must be "
                  "from 0 to below 1, the other from 0 on",
                  options_.momentum, options_.clip_norm));
  }
  if (options_.compression == Compression::automatic) trial_ = std::make_unique<Trial>();
  compresses_ = options_.compression != Compression::never;
}

CompressedReduction::~CompressedReduction() = default;

std::string CompressedReduction::name() const {
  std::string text = "compressed: ";
  for (const CompressionRule& rule : options_.rules) {
    text += fmt::format("{} by {}, ", rule.pattern, rule.codec->name());
  }
  constexpr const char* kPolicies[] = {"sent", "stop", "zeroed"};
  constexpr const char* kWhen[] = {"always", "automatic", "never"};
  text += fmt::format("{} from {} elements on; {}, {} residuals, infinity {}, seed {}",
                      options_.codec->name(), options_.min_elements,
                      kWhen[static_cast<int>(options_.compression)],
                      options_.error_feedback ? "with" : "without",
                      kPolicies[static_cast<int>(options_.non_finite)], options_.seed);
  if (options_.momentum > 0) {
    text += fmt::format(", momentum {}{}", options_.momentum,
                        options_.mask_momentum ? "" : " unmasked");
  }
  if (options_.clip_norm > 0) text += fmt::format(", clipped at {}", options_.clip_norm);
  return text;
}

std::shared_ptr<const Codec> CompressedReduction::codec_for(
    const GradientDescription& gradient) const {
  for (const CompressionRule& rule : options_.rules) {
    if (!fits(rule.pattern, gradient.name)) continue;
    return rule.codec->name() == "dense" ? nullptr : rule.codec;
  }
  const bool is_small = gradient.count < options_.min_elements;
  return is_small || options_.codec->name() == "dense" ? nullptr : options_.codec;
}

void CompressedReduction::attach(Communicator& communicator,
                                 std::span<const GradientDescription> gradients) {
  communicator_ = &communicator;
  rank_ = communicator.rank().value();
  ranks_ = communicator.size();
  reducer::check_same_hook(communicator, name());
  by_index_.clear();
  exchanges_.clear();
  pending_ = nullptr;
  for (const GradientDescription& description : gradients) {
    if (description.dtype != DType::f32) {
      by_index_.push_back(nullptr);
      continue;
    }
    std::unique_ptr<Gradient>& gradient = gradients_[description.name];
    if (gradient == nullptr) gradient = std::make_unique<Gradient>();
    gradient->name = description.name;
    gradient->codec = codec_for(description);
    gradient->key = content_hash(std::as_bytes(std::span(description.name)), options_.seed);
    const std::size_t count = gradient->codec != nullptr ? description.count : 0;
    if (gradient->residual.size() != count) gradient->residual.assign(count, 0.0f);
    const std::size_t momenta = options_.momentum > 0 ? description.count : 0;
    if (gradient->momentum.size() != momenta) gradient->momentum.assign(momenta, 0.0f);
    by_index_.push_back(gradient.get());
  }
  if (loaded_ != nullptr) restore();
}

// Takes what was loaded over. Gradients that it does not mention begin anew.
void CompressedReduction::restore() {
  const std::unique_ptr<reducer::SavedState> state = std::move(loaded_);
  reducer::check_origin(state->rank, state->ranks, rank_, ranks_);
  for (const auto& [name, gradient] : gradients_) {
    (void)reducer::find(state->residuals, name, gradient->residual.size());
    (void)reducer::find(state->momenta, name, gradient->momentum.size());
  }
  step_ = state->step;
  for (const auto& [name, gradient] : gradients_) {
    const auto* const residual = reducer::find(state->residuals, name, gradient->residual.size());
    gradient->has_residual = residual != nullptr;
    if (residual != nullptr) gradient->residual = *residual;
    if (residual == nullptr) std::ranges::fill(gradient->residual, 0.0f);
    const auto* const momentum = reducer::find(state->momenta, name, gradient->momentum.size());
    if (momentum != nullptr) gradient->momentum = *momentum;
    if (momentum == nullptr) std::ranges::fill(gradient->momentum, 0.0f);
  }
}

std::vector<std::byte> CompressedReduction::save() const {
  if (loaded_ != nullptr) return reducer::print(*loaded_);
  reducer::SavedState state{.hook = kStateName,
                            .step = step_,
                            .rank = static_cast<std::uint64_t>(rank_),
                            .ranks = static_cast<std::uint64_t>(ranks_)};
  for (const auto& [name, gradient] : gradients_) {
    if (!gradient->residual.empty()) state.residuals[name] = gradient->residual;
    if (!gradient->momentum.empty()) state.momenta[name] = gradient->momentum;
  }
  return reducer::print(state);
}

void CompressedReduction::load(std::span<const std::byte> bytes) {
  loaded_ = std::make_unique<reducer::SavedState>(reducer::parse(bytes, kStateName));
  if (communicator_ != nullptr) restore();
}

std::vector<std::vector<std::byte>> CompressedReduction::redistribute(
    std::span<const std::vector<std::byte>> states, std::size_t ranks) {
  return reducer::redistribute(states, ranks, kStateName);
}

codec::Position CompressedReduction::position_of(const Gradient& gradient) const {
  const auto rank = static_cast<std::uint64_t>(rank_);
  return {
      .step = step_ - 1, .shared_key = gradient.key, .own_key = Random(gradient.key + rank).next()};
}

void CompressedReduction::begin_step(Communicator& communicator) {
  if (trial_ != nullptr) compresses_ = trial_->compresses(communicator);
  ++step_;
  this_step_ = {.step = step_, .compressed = compresses_};
}

Work CompressedReduction::start(Communicator& communicator, const FullBucket& bucket) {
  if (bucket.op != ReduceOp::sum && bucket.op != ReduceOp::mean) {
    throw InvalidArgument(status_of(StatusCode::invalid_argument,
                                    "{} of compressed gradients has no meaning; sum and mean have",
                                    stretto::name(bucket.op)));
  }
  STRETTO_CHECK(communicator_ == &communicator, "attach() with this communicator comes first");
  if (bucket.index == 0) begin_step(communicator);
  send_pending(communicator);
  while (exchanges_.size() <= bucket.index) exchanges_.push_back(std::make_unique<Exchange>());
  Exchange& exchange = *exchanges_[bucket.index];
  const auto has_codec = [&](std::size_t index) {
    return by_index_[index] != nullptr && by_index_[index]->codec != nullptr;
  };
  const bool is_f32 = bucket.view.dtype == DType::f32;
  const bool has_any = std::ranges::any_of(bucket.gradients, has_codec);
  if (has_any && !is_f32) reducer::refuse_converted(name(), bucket.view.dtype);
  exchange.is_compressed = compresses_ && has_any;
  if (is_f32) clip_and_add_momentum(bucket);
  if (!exchange.is_compressed) {
    if (is_f32) add_residuals(bucket);
    return communicator.all_reduce(bucket.view, {.op = bucket.op, .timeout = bucket.timeout});
  }
  encode(bucket, exchange);
  exchange.timeout = bucket.timeout;
  const auto ranks = static_cast<std::size_t>(ranks_);
  exchange.lengths.assign(ranks, exchange.own.size());
  if (exchange.limit == 0) {
    exchange.all.resize(ranks * exchange.own.size());
    return communicator.all_gather(exchange.own, exchange.all, {.timeout = bucket.timeout});
  }
  const std::span<std::uint64_t> own(&exchange.lengths[static_cast<std::size_t>(rank_)], 1);
  exchange.first = communicator.all_gather(own, exchange.lengths, {.timeout = bucket.timeout});
  pending_ = &exchange;
  if (bucket.is_last()) send_pending(communicator);
  return Work();
}

// The messages of the bucket whose lengths are there by now, or will be soon: so all ranks submit
// operations in the same order, without a communicator of its own.
void CompressedReduction::send_pending(Communicator& communicator) {
  if (pending_ == nullptr) return;
  Exchange& exchange = *std::exchange(pending_, nullptr);
  exchange.first.wait();
  std::vector<std::size_t> counts;
  std::size_t total = 0;
  for (std::size_t rank = 0; rank < exchange.lengths.size(); ++rank) {
    if (exchange.lengths[rank] > exchange.limit) {
      const Status status(StatusCode::protocol,
                          fmt::format("rank {} announces messages of {} bytes, where at most {} "
                                      "are possible",
                                      rank, exchange.lengths[rank], exchange.limit),
                          static_cast<int>(rank));
      communicator.abort(std::string(status.message()));
      status.or_throw();
    }
    counts.push_back(exchange.lengths[rank]);
    total += exchange.lengths[rank];
  }
  exchange.all.resize(total);
  exchange.second = communicator.all_gather(
      exchange.own, exchange.all, {.counts = std::move(counts), .timeout = exchange.timeout});
}

void CompressedReduction::encode(const FullBucket& bucket, Exchange& exchange) {
  const TimePoint begin = Clock::now();
  static const std::shared_ptr<const Codec> kDense = dense();
  exchange.own.clear();
  exchange.limit = 0;
  bool is_fixed = true;
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    Gradient& gradient = *by_index_[bucket.gradients[i]];
    const std::span<float> values = floats(bucket.gradient_views[i]);
    const Codec& codec = gradient.codec != nullptr ? *gradient.codec : *kDense;
    const codec::Position position = position_of(gradient);
    is_fixed = is_fixed && codec.message_bytes(values.size(), position.step).has_value();
    exchange.limit += codec.max_message_bytes(values.size());
    if (options_.measure_norms && gradient.codec != nullptr) {
      this_step_.gradient_norm += squares(values);
    }
    // What travels as it is leaves nothing, so its own place serves.
    std::span<float> carry = gradient.residual;
    if (gradient.codec == nullptr) {
      scratch_.values.assign(values.size(), 0.0f);
      carry = scratch_.values;
    } else if (!options_.error_feedback) {
      std::ranges::fill(carry, 0.0f);
    }
    gradient.has_residual = options_.error_feedback;
    const std::size_t before = exchange.own.size();
    const bool masks = options_.mask_momentum && gradient.codec != nullptr;
    const std::size_t sent =
        codec.encode({.carry = carry,
                      .gradient = values,
                      .position = position,
                      .non_finite = options_.non_finite,
                      .hint = &gradient.hint,
                      .cleared = masks ? std::span<float>(gradient.momentum) : std::span<float>()},
                     scratch_, exchange.own);
    if (gradient.codec == nullptr) continue;
    this_step_.message_bytes += exchange.own.size() - before;
    this_step_.sent_values += sent;
    this_step_.elements += values.size();
    this_step_.gradient_bytes += values.size_bytes();
    if (options_.measure_norms) this_step_.residual_norm += squares(carry);
  }
  if (is_fixed) exchange.limit = 0;
  exchange.encoded = Clock::now();
  this_step_.encode_seconds += seconds(exchange.encoded - begin);
  ++this_step_.buckets;
}

// What is infinite or NaN is handed on, and not kept.
void CompressedReduction::clip_and_add_momentum(const FullBucket& bucket) {
  const double limit = double{options_.clip_norm} / std::sqrt(static_cast<double>(ranks_));
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    const std::span<float> values = floats(bucket.gradient_views[i]);
    if (limit > 0) {
      const double norm = std::sqrt(squares(values));
      const auto factor = static_cast<float>(limit / norm);
      for (std::size_t e = 0; norm > limit && std::isfinite(norm) && e < values.size(); ++e) {
        values[e] *= factor;
      }
    }
    std::vector<float>& momentum = by_index_[bucket.gradients[i]]->momentum;
    for (std::size_t e = 0; e < momentum.size(); ++e) {
      values[e] += options_.momentum * momentum[e];
      momentum[e] = std::isfinite(values[e]) ? values[e] : 0.0f;
    }
  }
}

// For steps that send everything: nothing is left, then.
void CompressedReduction::add_residuals(const FullBucket& bucket) {
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    Gradient& gradient = *by_index_[bucket.gradients[i]];
    if (!std::exchange(gradient.has_residual, false)) continue;
    const std::span<float> values = floats(bucket.gradient_views[i]);
    for (std::size_t e = 0; e < gradient.residual.size(); ++e) values[e] += gradient.residual[e];
    std::ranges::fill(gradient.residual, 0.0f);
  }
}

void CompressedReduction::finish(const FullBucket& bucket) {
  Exchange& exchange = *exchanges_[bucket.index];
  if (exchange.is_compressed) {
    STRETTO_CHECK(pending_ != &exchange, "bucket {} ends before its messages left", bucket.index);
    exchange.second.wait();
    const TimePoint begin = Clock::now();
    this_step_.exchange_seconds += seconds(begin - exchange.encoded);
    decode(bucket, exchange);
    this_step_.decode_seconds += seconds(Clock::now() - begin);
  }
  if (!bucket.is_last()) return;
  this_step_.gradient_norm = std::sqrt(this_step_.gradient_norm);
  this_step_.residual_norm = std::sqrt(this_step_.residual_norm);
  last_step_ = this_step_;
  if (trial_ != nullptr) trial_->end_step(last_step_);
}

void CompressedReduction::decode(const FullBucket& bucket, Exchange& exchange) {
  static const std::shared_ptr<const Codec> kDense = dense();
  for (const View& view : bucket.gradient_views) std::ranges::fill(floats(view), 0.0f);
  std::span<const std::byte> rest = exchange.all;
  for (std::size_t rank = 0; rank < exchange.lengths.size(); ++rank) {
    std::span<const std::byte> messages = rest.first(exchange.lengths[rank]);
    rest = rest.subspan(exchange.lengths[rank]);
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      const Gradient& gradient = *by_index_[bucket.gradients[i]];
      const Codec& codec = gradient.codec != nullptr ? *gradient.codec : *kDense;
      const auto length = codec.decode_add(messages, position_of(gradient), scratch_,
                                           floats(bucket.gradient_views[i]));
      if (length.ok()) {
        messages = messages.subspan(length.value());
        continue;
      }
      const Status status(length.status().code(),
                          fmt::format("gradient {} of rank {}, in step {}: {}", gradient.name, rank,
                                      step_, length.status().message()),
                          static_cast<int>(rank));
      // What stops all ranks needs no more words; the rest only this rank may have seen.
      if (status.code() != StatusCode::invalid_argument) {
        communicator_->abort(std::string(status.message()));
      }
      status.or_throw();
    }
  }
  if (bucket.op != ReduceOp::mean) return;
  for (const View& view : bucket.gradient_views) codec::divide(floats(view), ranks_);
}

std::span<const float> CompressedReduction::residual(const std::string& name) const {
  const auto found = gradients_.find(name);
  if (found == gradients_.end()) return {};
  return found->second->residual;
}

void CompressedAllReduce::run(const std::string& name, std::span<float> data,
                              const RunOptions& options) {
  std::unique_ptr<CompressedReduction>& state = states_[name];
  const GradientDescription description{.name = name, .dtype = DType::f32, .count = data.size()};
  if (state == nullptr) {
    auto made = std::make_unique<CompressedReduction>(options_);
    made->attach(communicator_, {&description, 1});
    state = std::move(made);
  }
  const std::size_t index = 0;
  const View view = view_of(data);
  const FullBucket bucket{.index = 0,
                          .of_count = 1,
                          .view = view,
                          .gradients = {&index, 1},
                          .gradient_views = {&view, 1},
                          .op = options.op,
                          .timeout = options.timeout};
  const auto known = state->residual(name);
  if (!known.empty() && known.size() != data.size()) {
    throw InvalidArgument(status_of(StatusCode::invalid_argument,
                                    "rank {}: '{}' has {} elements, and had {} before",
                                    communicator_.rank().value(), name, data.size(), known.size()));
  }
  state->start(communicator_, bucket).wait();
  state->finish(bucket);
}

CompressedReduction* CompressedAllReduce::state(const std::string& name) const {
  const auto found = states_.find(name);
  return found == states_.end() ? nullptr : found->second.get();
}

}  // namespace stretto
