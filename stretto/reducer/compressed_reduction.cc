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

double squares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return sum;
}

double seconds_since(TimePoint begin) { return seconds(Clock::now() - begin); }

}  // namespace

// A bucket on its way.
struct CompressedReduction::Exchange {
  bool is_compressed = false;
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
  return fmt::format("{}{} from {} elements on; {}, {} residuals, infinity {}, seed {}", text,
                     options_.codec->name(), options_.min_elements,
                     kWhen[static_cast<int>(options_.compression)],
                     options_.error_feedback ? "with" : "without",
                     kPolicies[static_cast<int>(options_.non_finite)], options_.seed);
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
  check_origin();
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
    if (!gradient->residual.empty() && gradient->residual.size() != count) {
      throw InvalidArgument(status_of(StatusCode::invalid_argument,
                                      "the residual of {} has {} elements, and now {} are wanted: "
                                      "it was saved with another model or other codecs",
                                      description.name, gradient->residual.size(), count));
    }
    gradient->residual.resize(count);
    by_index_.push_back(gradient.get());
  }
}

codec::Position CompressedReduction::position_of(const Gradient& gradient) const {
  const auto rank = static_cast<std::uint64_t>(rank_);
  return {
      .step = step_ - 1, .shared_key = gradient.key, .own_key = Random(gradient.key + rank).next()};
}

void CompressedReduction::begin_step(Communicator& communicator) {
  if (trial_ != nullptr) compresses_ = trial_->compresses(communicator, step_);
  ++step_;
  this_step_ = {.step = step_, .compressed = compresses_};
}

Work CompressedReduction::start(Communicator& communicator, const FullBucket& bucket) {
  if (bucket.op != ReduceOp::sum && bucket.op != ReduceOp::mean) {
    throw InvalidArgument(status_of(StatusCode::invalid_argument,
                                    "{} of compressed gradients has no meaning; sum and mean have",
                                    stretto::name(bucket.op)));
  }
  if (bucket.index == 0) begin_step(communicator);
  send_pending(communicator);
  while (exchanges_.size() <= bucket.index) exchanges_.push_back(std::make_unique<Exchange>());
  Exchange& exchange = *exchanges_[bucket.index];
  const auto has_codec = [&](std::size_t index) {
    return by_index_[index] != nullptr && by_index_[index]->codec != nullptr;
  };
  exchange.is_compressed = compresses_ && std::ranges::any_of(bucket.gradients, has_codec);
  if (!exchange.is_compressed) {
    if (bucket.view.dtype == DType::f32) add_residuals(bucket);
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
    const std::size_t before = exchange.own.size();
    const std::size_t sent = codec.encode(
        {carry, values, position, options_.non_finite, &gradient.hint}, scratch_, exchange.own);
    if (gradient.codec == nullptr) continue;
    this_step_.message_bytes += exchange.own.size() - before;
    this_step_.sent_values += sent;
    this_step_.elements += values.size();
    this_step_.gradient_bytes += values.size_bytes();
    if (options_.measure_norms) this_step_.residual_norm += squares(carry);
  }
  if (is_fixed) exchange.limit = 0;
  this_step_.encode_seconds += seconds_since(begin);
}

// For steps that send everything: nothing is left, then.
void CompressedReduction::add_residuals(const FullBucket& bucket) {
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    std::vector<float>& residual = by_index_[bucket.gradients[i]]->residual;
    const std::span<float> values = floats(bucket.gradient_views[i]);
    for (std::size_t e = 0; options_.error_feedback && e < residual.size(); ++e) {
      values[e] += residual[e];
    }
    std::ranges::fill(residual, 0.0f);
  }
}

void CompressedReduction::finish(const FullBucket& bucket) {
  Exchange& exchange = *exchanges_[bucket.index];
  if (exchange.is_compressed) {
    exchange.second.wait();
    const TimePoint begin = Clock::now();
    decode(bucket, exchange);
    this_step_.decode_seconds += seconds_since(begin);
  }
  if (!bucket.is_last()) return;
  this_step_.gradient_norm = std::sqrt(this_step_.gradient_norm);
  this_step_.residual_norm = std::sqrt(this_step_.residual_norm);
  last_step_ = this_step_;
  if (trial_ != nullptr) trial_->end_step();
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
