// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The steps of CompressedReduction: what is sent of a bucket, to whom, and what becomes of it.

#include "stretto/reducer/compressed_exchange.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/check.h"
#include "stretto/base/log.h"
#include "stretto/base/random.h"
#include "stretto/base/refuse.h"
#include "stretto/codec/arithmetic.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/compression_trial.h"

namespace stretto {
namespace {

// Parts of fewer elements are not worth a message each.
constexpr std::size_t kLeastPart = 512;

std::span<float> floats(const View& view) {
  return {reinterpret_cast<float*>(view.data), view.count};
}

double squares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return sum;
}

bool are_finite(std::span<const float> values) {
  std::uint32_t greatest = 0;  // Magnitude; those of infinity and NaN are above all others.
  for (const float value : values) {
    greatest = std::max(greatest, std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF);
  }
  return greatest < std::bit_cast<std::uint32_t>(std::numeric_limits<float>::infinity());
}

void clear_non_finite(const FullBucket& bucket) {
  for (const View& view : bucket.gradient_views) {
    for (float& value : floats(view)) value = std::isfinite(value) ? value : 0.0f;
  }
}

const Codec& codec_of(const std::shared_ptr<const Codec>& codec) {
  static const std::shared_ptr<const Codec> kDense = dense();
  return codec != nullptr ? *codec : *kDense;
}

std::vector<std::size_t> counts_of(std::span<const std::uint64_t> lengths) {
  return {lengths.begin(), lengths.end()};
}

// Seconds, between those that the model of the links has for two powers of two; NaN if it says
// nothing.
double predicted(const Communicator& communicator, Collective collective, std::size_t bytes) {
  const auto at = [&](std::size_t size) {
    const auto candidates = communicator.explain(collective, DType::u8, size).candidates;
    return candidates.empty() || size == 0 ? std::numeric_limits<double>::quiet_NaN()
                                           : candidates.front().seconds;
  };
  const std::size_t below = std::bit_floor(bytes), above = std::bit_ceil(bytes);
  if (below == bytes) return at(bytes);
  const double part = static_cast<double>(bytes - below) / static_cast<double>(above - below);
  return at(below) * (1 - part) + at(above) * part;
}

}  // namespace

// Said by rank 0 for all, whose models may differ.
void CompressedReduction::predict_exchange(Communicator& communicator) {
  const auto ranks = static_cast<std::size_t>(ranks_);
  const std::size_t bytes = prediction_.message_bytes;
  double predictions[] = {predicted(communicator, Collective::all_gather, ranks * bytes),
                          predicted(communicator, Collective::all_to_all, bytes) +
                              predicted(communicator, Collective::all_gather, bytes)};
  communicator.broadcast(std::span<double>(predictions), {.timeout = timeout()}).wait();
  prediction_.gathered_seconds = predictions[0];
  prediction_.divided_seconds = predictions[1];
}

// Which ranks add up what.
void CompressedReduction::choose_exchange(Communicator& communicator) {
  const bool is_automatic = options_.exchange == CompressedExchange::automatic;
  const std::uint64_t after_warm_up = std::numeric_limits<std::uint64_t>::max();
  prediction_ = {.message_bytes = bytes_in_step(after_warm_up).of_messages};
  divides_ = options_.exchange == CompressedExchange::divide;
  if (is_automatic || trial_ != nullptr) predict_exchange(communicator);
  const auto& [bytes, gathered, divided] = prediction_;
  const bool is_known = prediction_.is_known();
  if (is_automatic) divides_ = is_known && divided < gathered;
  const bool is_divided = divides_in_step(after_warm_up);
  exchange_reason_ = is_divided ? "divided" : "gathered";
  if (is_divided != divides_) {
    exchange_reason_ += ": gathered, they are as many bytes as an all_reduce without them";
  } else if (!is_automatic) {
    exchange_reason_ += ", as was asked for";
  } else if (is_known) {
    exchange_reason_ += fmt::format(
        ": the model of the links predicts {:.3g} ms gathered and {:.3g} ms divided for messages "
        "of {} bytes from each of {} ranks",
        gathered * 1e3, divided * 1e3, bytes, ranks_);
  } else {
    exchange_reason_ += ": there is no model of these links, or of such messages";
  }
  if ((is_automatic || is_divided != divides_) && communicator.rank() == Rank(0)) {
    log(LogLevel::info, "messages are {}", exchange_reason_);
  }
  if (trial_ != nullptr && is_known) trial_->expect(is_divided ? divided : gathered);
}

CompressedReduction::Bytes CompressedReduction::bytes_in_step(std::uint64_t step) const {
  Bytes bytes;
  for (const Gradient* const gradient : by_index_) {
    if (gradient == nullptr || gradient->codec == nullptr) continue;
    const std::size_t count = gradient->residual.size();
    const auto message = gradient->codec->message_bytes(count, step);
    if (!message) continue;
    bytes.of_messages += *message;
    bytes.of_gradients += count * sizeof(float);
  }
  return bytes;
}

// Where that was not asked for, too, if gathering receives as much as an all_reduce without a
// codec, which is 2 / p of the gradients from each other rank, and the model of the links has not
// said what is faster for these messages. Told for all buckets together, so that results do not
// depend on which gradient is in which.
bool CompressedReduction::divides_in_step(std::uint64_t step) const {
  const auto ranks = static_cast<std::size_t>(ranks_);
  const Bytes bytes = bytes_in_step(step);
  const bool is_predicted = options_.exchange == CompressedExchange::automatic &&
                            prediction_.is_known() &&
                            bytes.of_messages == prediction_.message_bytes;
  const bool gathers_as_much = bytes.of_messages * ranks >= 2 * bytes.of_gradients;
  const bool is_worth_it = bytes.of_gradients >= ranks * kLeastPart * sizeof(float);
  return divides_ || (gathers_as_much && is_worth_it && ranks > 2 && !is_predicted);
}

// The part that `adder` adds up; the whole if nothing is divided. `of_sum`: what it sends of it.
CompressedReduction::Part CompressedReduction::part_of(const Exchange& exchange, std::size_t i,
                                                       std::size_t adder, bool of_sum) const {
  const Gradient& gradient = *exchange.gradients[i];
  const auto rank = static_cast<std::uint64_t>(rank_);
  const auto ranks = static_cast<std::size_t>(ranks_);
  Part part{.first = 0, .count = exchange.values[i].size(), .position = {}};
  std::uint64_t key = gradient.key;
  if (exchange.is_divided && part.count >= ranks * kLeastPart) {
    part.first = adder * exchange.values[i].size() / ranks;
    part.count = (adder + 1) * exchange.values[i].size() / ranks - part.first;
    key = Random(key ^ (adder + 1)).next();
  } else if (exchange.is_divided && adder != gradient.owner) {
    part.count = 0;
  }
  part.position = {.step = step_ - 1,
                   .shared_key = key,
                   .own_key = Random(key + rank + (of_sum ? ranks : 0)).next()};
  return part;
}

void CompressedReduction::begin_step(Communicator& communicator) {
  if (trial_ != nullptr) compresses_ = trial_->compresses(communicator);
  divides_step_ = divides_in_step(step_);
  ++step_;
  this_step_ = {.step = step_, .compressed = compresses_};
}

Work CompressedReduction::start(Communicator& communicator, const FullBucket& bucket) {
  if (bucket.op != ReduceOp::sum && bucket.op != ReduceOp::mean) {
    refuse("{} of compressed gradients has no meaning; sum and mean have",
           stretto::name(bucket.op));
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
    if (is_f32 && options_.non_finite == NonFinite::zero) clear_non_finite(bucket);
    return communicator.all_reduce(bucket.view, {.op = bucket.op, .timeout = bucket.timeout});
  }
  encode(bucket, exchange);
  const auto ranks = static_cast<std::size_t>(ranks_);
  const auto rank = static_cast<std::size_t>(rank_);
  if (exchange.is_divided) {
    exchange.received.resize(ranks * exchange.lengths[rank]);
    exchange.first = communicator.all_to_all(
        exchange.own, exchange.received,
        {.send_counts = counts_of(exchange.lengths),
         .recv_counts = std::vector<std::size_t>(ranks, exchange.lengths[rank]),
         .timeout = bucket.timeout});
  } else if (exchange.limit == 0) {
    exchange.all.resize(ranks * exchange.own.size());
    return communicator.all_gather(exchange.own, exchange.all, {.timeout = bucket.timeout});
  } else {
    const std::span<std::uint64_t> own(&exchange.lengths[rank], 1);
    exchange.first = communicator.all_gather(own, exchange.lengths, {.timeout = bucket.timeout});
  }
  pending_ = &exchange;
  if (bucket.is_last()) send_pending(communicator);
  return Work();
}

// The messages of the bucket whose lengths or parts are there by now, or will be soon: so all ranks
// submit operations in the same order, without a communicator of its own.
void CompressedReduction::send_pending(Communicator& communicator) {
  if (pending_ == nullptr) return;
  Exchange& exchange = *std::exchange(pending_, nullptr);
  exchange.first.wait();
  if (exchange.is_divided) add_up(exchange);
  std::size_t total = 0;
  for (std::size_t rank = 0; rank < exchange.lengths.size(); ++rank) {
    if (exchange.limit > 0 && exchange.lengths[rank] > exchange.limit) {
      const Status status(StatusCode::protocol,
                          fmt::format("rank {} announces messages of {} bytes, where at most {} "
                                      "are possible",
                                      rank, exchange.lengths[rank], exchange.limit),
                          static_cast<int>(rank));
      communicator.abort(std::string(status.message()));
      status.or_throw();
    }
    total += exchange.lengths[rank];
  }
  exchange.all.resize(total);
  exchange.second =
      communicator.all_gather(exchange.own, exchange.all,
                              {.counts = counts_of(exchange.lengths), .timeout = exchange.timeout});
}

void CompressedReduction::encode(const FullBucket& bucket, Exchange& exchange) {
  const TimePoint begin = Clock::now();
  exchange.gradients.clear();
  exchange.values.clear();
  exchange.silent.clear();
  exchange.own.clear();
  exchange.timeout = bucket.timeout;
  exchange.limit = 0;
  bool is_fixed = true;
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    Gradient& gradient = *by_index_[bucket.gradients[i]];
    const std::span<float> values = floats(bucket.gradient_views[i]);
    exchange.gradients.push_back(&gradient);
    exchange.values.push_back(values);
    exchange.silent.push_back(bucket.is_silent(i) ? 1 : 0);
    if (bucket.is_silent(i)) std::ranges::fill(values, 0.0f);
    const Codec& codec = codec_of(gradient.codec);
    is_fixed = is_fixed && codec.message_bytes(values.size(), step_ - 1).has_value();
    exchange.limit += codec.max_message_bytes(values.size());
    gradient.has_residual = options_.error_feedback;
    if (gradient.codec == nullptr) continue;
    if (options_.measure_norms) this_step_.gradient_norm += squares(values);
    this_step_.elements += values.size();
    this_step_.gradient_bytes += values.size_bytes();
  }
  if (is_fixed) exchange.limit = 0;
  exchange.is_divided = divides_step_ && is_fixed;
  exchange.stopped_by.assign(exchange.gradients.size(), std::nullopt);
  const auto ranks = static_cast<std::size_t>(ranks_);
  exchange.lengths.assign(ranks, 0);
  for (std::size_t adder = 0; adder < (exchange.is_divided ? ranks : 1); ++adder) {
    exchange.lengths[adder] = encode_parts(exchange, adder, false);
  }
  if (!exchange.is_divided) exchange.lengths.assign(ranks, exchange.own.size());
  exchange.encoded = Clock::now();
  this_step_.encode_seconds += seconds(exchange.encoded - begin);
  ++this_step_.buckets;
}

// What sums of messages are divided by before they are encoded again: so those of a codec that is
// bounded are not beyond its bound. A power of two, which rounds nothing.
int CompressedReduction::divisor_of_sums(const Gradient& gradient) const {
  if (!codec_of(gradient.codec).is_bounded()) return 1;
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks_)));
}

// Appends the messages of what `adder` adds up, or has added up, and returns their length.
std::size_t CompressedReduction::encode_parts(Exchange& exchange, std::size_t adder, bool of_sum) {
  const std::size_t begin = exchange.own.size();
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    Gradient& gradient = *exchange.gradients[i];
    const Part part = part_of(exchange, i, adder, of_sum);
    if (exchange.is_divided && part.count == 0) continue;
    const std::span<float> values = exchange.values[i].subspan(part.first, part.count);
    const int divisor = of_sum ? divisor_of_sums(gradient) : 1;
    codec::divide(values, divisor);
    // What travels as it is has no residual. Of a codec that is bounded the residual, which may be
    // what this rank has clipped, is not sent with the sum; nor that of a silent gradient at all.
    const bool is_silent = exchange.silent[i] != 0;
    const bool sets_aside = gradient.codec == nullptr || divisor > 1 || is_silent;
    std::span<float> carry, cleared;
    if (sets_aside) {
      aside_.assign(part.count, 0.0f);
      carry = aside_;
    } else {
      carry = std::span(gradient.residual).subspan(part.first, part.count);
      if (!options_.error_feedback) std::ranges::fill(carry, 0.0f);
      // What is sent of a sum is not what this rank has moved by.
      const bool masks = options_.mask_momentum && !gradient.momentum.empty() && !of_sum;
      if (masks) cleared = std::span(gradient.momentum).subspan(part.first, part.count);
    }
    const std::size_t before = exchange.own.size();
    const std::size_t sent =
        codec_of(gradient.codec)
            .encode(
                {.carry = carry,
                 .gradient = values,
                 .position = part.position,
                 .non_finite = options_.non_finite,
                 .hint = is_silent ? nullptr
                                   : &gradient.hints[of_sum ? gradient.hints.size() - 1 : adder],
                 .cleared = cleared,
                 .stopped_by = of_sum ? exchange.stopped_by[i] : std::nullopt},
                scratch_, exchange.own);
    if (gradient.codec == nullptr) continue;
    for (std::size_t e = 0; sets_aside && e < part.count; ++e) {
      gradient.residual[part.first + e] += carry[e] * static_cast<float>(divisor);
    }
    this_step_.message_bytes += exchange.own.size() - before;
    this_step_.sent_values += sent;
  }
  return exchange.own.size() - begin;
}

// What all ranks have sent for this rank's parts becomes this rank's messages. What these do not
// say joins its residual.
void CompressedReduction::add_up(Exchange& exchange) {
  const TimePoint begin = Clock::now();
  const auto own = static_cast<std::size_t>(rank_);
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    const Part part = part_of(exchange, i, own, false);
    std::ranges::fill(exchange.values[i].subspan(part.first, part.count), 0.0f);
  }
  std::span<const std::byte> rest = exchange.received;
  for (std::size_t rank = 0; rank < exchange.lengths.size(); ++rank) {
    decode_parts(exchange, rest.first(exchange.lengths[own]), rank, own, false);
    rest = rest.subspan(exchange.lengths[own]);
  }
  this_step_.received_bytes += exchange.received.size() - exchange.lengths[own];
  const TimePoint added = Clock::now();
  this_step_.decode_seconds += seconds(added - begin);
  exchange.own.clear();
  encode_parts(exchange, own, true);
  this_step_.encode_seconds += seconds(Clock::now() - added);
}

// Adds what rank `from` says of what `adder` adds up, or has added up.
void CompressedReduction::decode_parts(Exchange& exchange, std::span<const std::byte> messages,
                                       std::size_t from, std::size_t adder, bool of_sum) {
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    const Gradient& gradient = *exchange.gradients[i];
    const Part part = part_of(exchange, i, adder, of_sum);
    if (exchange.is_divided && part.count == 0) continue;
    const Codec& codec = codec_of(gradient.codec);
    const auto sums = exchange.values[i].subspan(part.first, part.count);
    const auto length = codec.decode_add(messages, part.position, scratch_, sums);
    if (length.ok()) {
      messages = messages.subspan(length.value());
      continue;
    }
    const StatusCode code = length.status().code();
    if (code == StatusCode::invalid_argument && exchange.is_divided && !of_sum) {
      // Only this rank knows. What it sends of the sum tells all, and of whom it knows it.
      sums[0] = std::numeric_limits<float>::quiet_NaN();
      if (!exchange.stopped_by[i]) exchange.stopped_by[i] = Rank(static_cast<std::int32_t>(from));
      messages = messages.subspan(*codec.message_bytes(part.count, part.position.step));
      continue;
    }
    // Of a sum the rank that has stopped it, or the one that found it so without any.
    const std::optional<Rank> named = length.status().rank();
    const bool is_of_sum = exchange.is_divided && of_sum;
    const bool is_named = is_of_sum && named && *named < Rank(ranks_);
    const Rank whose = is_named ? *named : Rank(static_cast<std::int32_t>(from));
    const Status status(code,
                        fmt::format("gradient {} {} rank {}, in step {}: {}", gradient.name,
                                    is_of_sum && !is_named ? "as added up by" : "of", whose.value(),
                                    step_, length.status().message()),
                        whose);
    // What stops all ranks needs no more words; the rest only this rank may have seen.
    if (code != StatusCode::invalid_argument) communicator_->abort(std::string(status.message()));
    status.or_throw();
  }
}

// What is infinite or NaN is handed on, and not kept.
void CompressedReduction::clip_and_add_momentum(const FullBucket& bucket) {
  const double limit = double{options_.clip_norm} / std::sqrt(static_cast<double>(ranks_));
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    if (bucket.is_silent(i)) continue;
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
    if (bucket.is_silent(i) || !std::exchange(gradient.has_residual, false)) continue;
    const std::span<float> values = floats(bucket.gradient_views[i]);
    for (std::size_t e = 0; e < gradient.residual.size(); ++e) values[e] += gradient.residual[e];
    std::ranges::fill(gradient.residual, 0.0f);
  }
}

// All ranks find the same in what they have reduced without a codec.
void CompressedReduction::stop_at_non_finite(const FullBucket& bucket) const {
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    if (are_finite(floats(bucket.gradient_views[i]))) continue;
    throw InvalidArgument(status_of(StatusCode::invalid_argument,
                                    "gradient {}, in step {}: what all ranks have added up, "
                                    "without a codec, holds infinity or NaN, and NonFinite::stop "
                                    "is set",
                                    by_index_[bucket.gradients[i]]->name, step_));
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
  } else if (options_.non_finite == NonFinite::stop && bucket.view.dtype == DType::f32) {
    stop_at_non_finite(bucket);
  }
  if (!bucket.is_last()) return;
  this_step_.gradient_norm = std::sqrt(this_step_.gradient_norm);
  this_step_.residual_norm = std::sqrt(this_step_.residual_norm);
  last_step_ = this_step_;
  if (trial_ != nullptr) trial_->end_step(last_step_);
}

void CompressedReduction::abandon(std::size_t bucket) {
  if (bucket >= exchanges_.size()) return;
  const Work first = std::move(exchanges_[bucket]->first);
  const Work second = std::move(exchanges_[bucket]->second);
}

void CompressedReduction::decode(const FullBucket& bucket, Exchange& exchange) {
  for (const std::span<float> values : exchange.values) std::ranges::fill(values, 0.0f);
  std::span<const std::byte> rest = exchange.all;
  for (std::size_t rank = 0; rank < exchange.lengths.size(); ++rank) {
    decode_parts(exchange, rest.first(exchange.lengths[rank]), rank, rank, true);
    rest = rest.subspan(exchange.lengths[rank]);
  }
  this_step_.received_bytes += exchange.all.size() - exchange.own.size();
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    const int divisor = exchange.is_divided ? divisor_of_sums(*exchange.gradients[i]) : 1;
    if (divisor > 1) {
      for (float& value : exchange.values[i]) value *= static_cast<float>(divisor);
    }
    if (bucket.op == ReduceOp::mean) codec::divide(exchange.values[i], ranks_);
    if (options_.measure_norms)
      this_step_.residual_norm += squares(exchange.gradients[i]->residual);
  }
}

}  // namespace stretto
