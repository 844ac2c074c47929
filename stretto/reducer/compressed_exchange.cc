// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The steps of CompressedReduction: what is sent of a bucket, to which ranks, and in which order.

#include "stretto/reducer/compressed_exchange.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "stretto/base/check.h"
#include "stretto/base/refuse.h"
#include "stretto/codec/arithmetic.h"
#include "stretto/codec/finite.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/compression_trial.h"

namespace stretto {
namespace {

using codec::are_finite;
using codec::clear_non_finite;

// Eight sums, because each addition to a single one would wait for the addition before.
double squares(std::span<const float> values) {
  constexpr std::size_t kSums = 8;
  std::array<double, kSums> sums = {};
  std::size_t i = 0;
  for (; i + kSums <= values.size(); i += kSums) {
    for (std::size_t j = 0; j < kSums; ++j) {
      const double value = values[i + j];
      sums[j] += value * value;
    }
  }
  for (; i < values.size(); ++i) sums[i % kSums] += double{values[i]} * double{values[i]};
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

bool CompressedReduction::has_codec(std::size_t gradient) const {
  return by_index_[gradient] != nullptr && by_index_[gradient]->compressor != nullptr;
}

// Whether this step is compressed, and why.
CompressionReason CompressedReduction::choose(Communicator& communicator,
                                              const std::optional<Duration>& timeout) {
  if (options_.compression == Compression::never) return CompressionReason::never;
  compresses_ = step_ >= options_.dense_steps;
  if (!compresses_) return CompressionReason::dense_steps;
  if (trial_ == nullptr) return CompressionReason::always;
  compresses_ = step_ >= warm_up_steps_;
  if (!compresses_) return CompressionReason::warm_up;
  compresses_ = trial_->compresses(communicator, timeout);
  return trial_->reason();
}

void CompressedReduction::begin_step(Communicator& communicator, const FullBucket& full) {
  reason_ = choose(communicator, full.timeout);
  divides_step_ = compresses_ && divides_in_step(step_);
  const auto& combines_from = prediction_.combines_from;
  combines_step_ = combines_from && announced_ >= static_cast<float>(*combines_from);
  // If buckets finish early in this step, some may be left out of the next one, which must then not
  // be compressed; it may be the first of a trial.
  const bool is_steady = trial_ != nullptr ? trial_->allows_early_finish()
                                           : options_.compression == Compression::never;
  finishes_early_ = !compresses_ && is_steady;
  ++step_;
  begin_statistics(this_step_, step_, compresses_, full.of_count);
  if (trial_ != nullptr) this_step_.measured = trial_->measured();
  announcing_ = 0;
  // The statistics of a step that is not compressed are complete now; its last bucket may be left
  // out.
  if (!compresses_) last_step_ = this_step_;
}

void CompressedReduction::note_choice(const FullBucket& full, bool has_any) {
  CompressionReason reason = reason_;
  if (!has_any) reason = reason_without_codec(full.gradient_views, options_.min_elements);
  const auto note = [&](CompressionStatistics& step) {
    // Not all users of the hook know from the beginning how many buckets a step has.
    if (step.choices.size() <= full.index) step.choices.resize(full.index + 1);
    step.choices[full.index] = {.compressed = compresses_ && has_any, .reason = reason};
  };
  note(this_step_);
  if (!compresses_) note(last_step_);  // begin_step() has made it the last one already.
}

Work CompressedReduction::start(Communicator& communicator, const FullBucket& full) {
  if (full.op != ReduceOp::sum && full.op != ReduceOp::mean) {
    refuse("{} of compressed gradients has no meaning; sum and mean have", stretto::name(full.op));
  }
  STRETTO_CHECK(communicator_ == &communicator, "attach() with this communicator comes first");
  if (std::exchange(bucket_step_, full.step) != full.step) {
    begin_step(communicator, full);
  }
  advance(communicator);
  while (buckets_.size() <= full.index) buckets_.push_back(std::make_unique<Bucket>());
  Bucket& bucket = *buckets_[full.index];
  const bool is_f32 = full.view.dtype == DType::f32;
  const bool has_any =
      std::ranges::any_of(full.gradients, [this](std::size_t index) { return has_codec(index); });
  const auto is_converted = [&](std::size_t index) {
    return (by_index_[index] != nullptr) != is_f32;
  };
  if (std::ranges::any_of(full.gradients, is_converted)) {
    reducer::refuse_converted(name(), full.view.dtype);
  }
  bucket.is_compressed = compresses_ && has_any;
  note_choice(full, has_any);
  if (is_f32 && options_.non_finite == NonFinite::zero) {
    // Before they spoil norms, momenta and residuals. Values that overflow in these are cleared
    // later.
    for (const View& view : full.gradient_views) clear_non_finite(floats(view));
  }
  if (is_f32) keep_remembered(full);
  if (is_f32) clip_and_add_momentum(full);
  if (bucket.is_compressed) return start_messages(communicator, full, bucket);
  if (is_f32) add_residuals(full);
  for (const View& view : full.gradient_views) {
    if (is_f32 && options_.non_finite == NonFinite::zero) clear_non_finite(floats(view));
  }
  Work work = communicator.all_reduce(full.view, {.op = full.op, .timeout = full.timeout});
  submit_rest(communicator, full);
  return work;
}

// After the last bucket there is no start() that would submit the remaining operations.
void CompressedReduction::submit_rest(Communicator& communicator, const FullBucket& full) {
  if (!full.is_last()) return;
  while (!pending_.empty()) advance(communicator);
  // Here, because every rank gets here; some may drop the work and never call finish().
  if (compresses_) announced_ = static_cast<float>(announcing_);
}

void CompressedReduction::keep_remembered(const FullBucket& full) {
  for (std::size_t i = 0; i < full.gradients.size(); ++i) {
    Gradient& gradient = *by_index_[full.gradients[i]];
    Gradient::Remembered& before = gradient.before;
    if (!full.is_uncomputed(i)) {
      before = {};
      continue;
    }
    // The residual of a silent gradient changes, too, if this rank adds up a part of it, and if the
    // ranks' factors are not finite, since all ranks then clear it.
    const Way way = gradient.compressor == nullptr ? Way::gathered : way_of(gradient);
    before.has_all = !full.is_silent(i) || way != Way::gathered;
    before.has_residual = gradient.has_residual;
    before.right.assign(gradient.factors.right.begin(), gradient.factors.right.end());
    before.hints.assign(gradient.hints.begin(), gradient.hints.end());
    if (!before.has_all) continue;
    before.residual.assign(gradient.residual.begin(), gradient.residual.end());
    before.momentum.assign(gradient.momentum.begin(), gradient.momentum.end());
  }
}

void CompressedReduction::forget(std::span<const std::size_t> gradients) {
  for (const std::size_t index : gradients) {
    if (by_index_[index] == nullptr) continue;
    Gradient& gradient = *by_index_[index];
    Gradient::Remembered& before = gradient.before;
    gradient.has_residual = before.has_residual;
    gradient.factors.right.swap(before.right);
    gradient.hints.swap(before.hints);
    if (!before.has_all) continue;
    gradient.residual.swap(before.residual);
    gradient.momentum.swap(before.momentum);
  }
}

// Operations of several buckets share a communicator, so that all ranks must submit them in the
// same order: the next operation of this bucket is submitted when a later bucket starts.
Work CompressedReduction::start_messages(Communicator& communicator, const FullBucket& full,
                                         Bucket& bucket) {
  const TimePoint begin = Clock::now();
  sort_gradients(full, bucket);
  for (Exchange& exchange : bucket.exchanges) {
    if (!exchange.gradients.empty()) encode(exchange);
  }
  const double spent = seconds(Clock::now() - begin);
  this_step_.encode_seconds += spent;
  this_step_.choices[full.index].codec_seconds += spent;
  ++this_step_.buckets;
  for (Exchange& exchange : bucket.exchanges) {
    if (exchange.gradients.empty()) continue;
    submit_next(communicator, exchange);
    if (exchange.next != Exchange::Next::nothing) pending_.push_back(&exchange);
  }
  Work work;
  if (!bucket.plain.empty()) {
    work = communicator.all_reduce(bucket.plain, {.op = full.op, .timeout = full.timeout});
  }
  submit_rest(communicator, full);
  return work;
}

void CompressedReduction::Exchange::clear() {
  gradients.clear();
  values.clear();
  silent.clear();
  own.clear();
  has_fixed_length = true;
  codec_seconds = 0;
}

// Adds each gradient to the exchange for its way.
void CompressedReduction::sort_gradients(const FullBucket& full, Bucket& bucket) {
  bucket.plain.clear();
  for (std::size_t way = 0; way < kCompressedWays; ++way) {
    bucket.exchanges[way].clear();
    bucket.exchanges[way].way = static_cast<Way>(way);
    bucket.exchanges[way].timeout = full.timeout;
    bucket.exchanges[way].op = full.op;
  }
  for (std::size_t i = 0; i < full.gradients.size(); ++i) {
    Gradient& gradient = *by_index_[full.gradients[i]];
    const std::span<float> values = floats(full.gradient_views[i]);
    if (gradient.compressor == nullptr) {
      if (options_.non_finite == NonFinite::zero) clear_non_finite(values);
      bucket.plain.insert(bucket.plain.end(), values.begin(), values.end());
      continue;
    }
    Exchange& exchange = bucket.exchanges[static_cast<std::size_t>(way_of(gradient))];
    exchange.gradients.push_back(&gradient);
    exchange.values.push_back(values);
    exchange.silent.push_back(full.is_silent(i) ? 1 : 0);
    exchange.has_fixed_length = exchange.has_fixed_length && gradient.has_fixed_length;
    if (full.is_silent(i)) std::ranges::fill(values, 0.0f);
    gradient.has_residual = options_.error_feedback;
    if (options_.measure_norms) this_step_.gradient_norm += squares(values);
    this_step_.elements += values.size();
    this_step_.gradient_bytes += values.size_bytes();
  }
}

// Makes this rank's messages or left factors, and sets what is submitted first.
void CompressedReduction::encode(Exchange& exchange) {
  using Next = Exchange::Next;
  if (exchange.way == Way::factored) return find_left_factors(exchange);
  const auto ranks = static_cast<std::size_t>(ranks_);
  exchange.stopped_by.assign(exchange.gradients.size(), std::nullopt);
  exchange.parts.send_counts.assign(ranks, 0);
  exchange.announced.assign(ranks, {});
  for (std::size_t adder = 0; adder < (exchange.has_parts() ? ranks : 1); ++adder) {
    exchange.parts.send_counts[adder] = encode_parts(exchange, adder, false);
  }
  if (exchange.has_parts()) {
    exchange.parts.recv_counts.assign(ranks,
                                      exchange.parts.send_counts[static_cast<std::size_t>(rank_)]);
    exchange.lengths = exchange.parts.send_counts;
    exchange.next = exchange.has_fixed_length ? Next::parts : Next::part_lengths;
  } else {
    exchange.lengths.assign(ranks, exchange.own.size());
    exchange.next = exchange.has_fixed_length ? Next::messages : Next::lengths;
  }
  exchange.encoded = Clock::now();
}

// Submits the next operation of each exchange in flight. The operation before has ended, or will
// soon.
void CompressedReduction::advance(Communicator& communicator) {
  for (Exchange* const exchange : pending_) submit_next(communicator, *exchange);
  std::erase_if(pending_,
                [](const Exchange* each) { return each->next == Exchange::Next::nothing; });
}

void CompressedReduction::submit_next(Communicator& communicator, Exchange& exchange) {
  exchange.work.wait();
  switch (exchange.next) {
    case Exchange::Next::part_lengths:
      exchange.work = communicator.all_to_all(
          exchange.parts.send_counts, exchange.parts.recv_counts, {.timeout = exchange.timeout});
      exchange.next = Exchange::Next::parts;
      break;
    case Exchange::Next::parts:
      submit_parts(communicator, exchange);
      exchange.next = exchange.announces() ? Exchange::Next::lengths : Exchange::Next::messages;
      break;
    case Exchange::Next::lengths:
      submit_lengths(communicator, exchange);
      exchange.next = Exchange::Next::messages;
      break;
    case Exchange::Next::messages:
      submit_messages(communicator, exchange);
      exchange.next = Exchange::Next::nothing;
      break;
    case Exchange::Next::left_factors:
      exchange.work =
          communicator.all_reduce(exchange.left, {.op = exchange.op, .timeout = exchange.timeout});
      exchange.next = Exchange::Next::right_factors;
      break;
    case Exchange::Next::right_factors:
      find_right_factors(exchange);
      exchange.work =
          communicator.all_reduce(exchange.right, {.op = exchange.op, .timeout = exchange.timeout});
      exchange.next = Exchange::Next::nothing;
      break;
    case Exchange::Next::nothing:
      break;
  }
}

void CompressedReduction::submit_parts(Communicator& communicator, Exchange& exchange) {
  if (!exchange.has_fixed_length) {
    for (std::size_t rank = 0; rank < exchange.parts.recv_counts.size(); ++rank) {
      check_announced(*communicator_, exchange.parts.recv_counts[rank],
                      longest(exchange, static_cast<std::size_t>(rank_), false), rank);
    }
  }
  exchange.received.resize(
      std::reduce(exchange.parts.recv_counts.begin(), exchange.parts.recv_counts.end()));
  exchange.parts.timeout = exchange.timeout;
  exchange.work = communicator.all_to_all(exchange.own, exchange.received, exchange.parts);
}

void CompressedReduction::submit_lengths(Communicator& communicator, Exchange& exchange) {
  if (exchange.has_parts()) add_up(exchange);
  Exchange::Announcement& own = exchange.announced[rank_];
  own.length = exchange.own.size();
  exchange.work = communicator.all_gather(std::as_bytes(std::span(&own, 1)),
                                          std::as_writable_bytes(std::span(exchange.announced)),
                                          {.timeout = exchange.timeout});
}

void CompressedReduction::submit_messages(Communicator& communicator, Exchange& exchange) {
  if (exchange.way == Way::divided) add_up(exchange);
  for (std::size_t rank = 0; exchange.announces() && rank < exchange.lengths.size(); ++rank) {
    const Exchange::Announcement& announced = exchange.announced[rank];
    check_announced(*communicator_, announced.length, longest(exchange, rank, true), rank);
    exchange.lengths[rank] = announced.length;
    announcing_ += announced.encoded;
  }
  exchange.all.resize(std::reduce(exchange.lengths.begin(), exchange.lengths.end()));
  exchange.messages.counts.clear();
  const bool are_equal = !exchange.has_parts() && !exchange.announces();
  if (!are_equal) exchange.messages.counts = exchange.lengths;
  exchange.messages.timeout = exchange.timeout;
  exchange.work = communicator.all_gather(exchange.own, exchange.all, exchange.messages);
}

void check_announced(Communicator& communicator, std::size_t bytes, std::size_t longest,
                     std::size_t rank) {
  if (bytes <= longest) return;
  const std::size_t named = reducer::job_rank(communicator, rank);
  reducer::abort_and_throw(communicator, StatusCode::protocol, named,
                           "rank {} announces messages of {} bytes, where at most {} are possible",
                           named, bytes, longest);
}

// Infinity and NaN stay in the gradient, but are not kept in the momentum.
void CompressedReduction::clip_and_add_momentum(const FullBucket& bucket) {
  const double limit = double{options_.clip_norm} / std::sqrt(static_cast<double>(ranks_));
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    if (bucket.is_silent(i)) continue;
    const std::span<float> values = floats(bucket.gradient_views[i]);
    if (limit > 0) {
      const double norm = std::sqrt(squares(values));
      const auto factor = static_cast<float>(limit / norm);
      if (norm > limit && std::isfinite(norm)) {
        for (float& value : values) value *= factor;
      }
    }
    const std::span<float> momentum = by_index_[bucket.gradients[i]]->momentum;
    const float kept = options_.momentum;
    for (std::size_t e = 0; e < momentum.size(); ++e) {
      values[e] += kept * momentum[e];
      momentum[e] = std::isfinite(values[e]) ? values[e] : 0.0f;
    }
  }
}

// For steps that send everything: the residuals become zero.
void CompressedReduction::add_residuals(const FullBucket& bucket) {
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
    Gradient& gradient = *by_index_[bucket.gradients[i]];
    if (bucket.is_silent(i) || !std::exchange(gradient.has_residual, false)) continue;
    const std::span<float> values = floats(bucket.gradient_views[i]);
    const std::span<float> residual = gradient.residual;
    for (std::size_t e = 0; e < residual.size(); ++e) values[e] += residual[e];
    std::ranges::fill(residual, 0.0f);
  }
}

// All ranks check the same sums, with the same result. Finite values may add up to infinity.
void CompressedReduction::check_sums(const FullBucket& full) const {
  for (std::size_t i = 0; i < full.gradients.size(); ++i) {
    const std::span<float> sums = floats(full.gradient_views[i]);
    if (options_.non_finite == NonFinite::zero) clear_non_finite(sums);
    if (options_.non_finite != NonFinite::stop || are_finite(sums)) continue;
    refuse(
        "{}, in step {}: what all ranks have added up holds infinity or NaN, and NonFinite::stop "
        "is set",
        by_index_[full.gradients[i]]->described(), step_);
  }
}

void CompressedReduction::finish(const FullBucket& full) {
  Bucket& bucket = *buckets_[full.index];
  if (bucket.is_compressed) finish_messages(full, bucket);
  if (options_.non_finite != NonFinite::send && full.view.dtype == DType::f32) check_sums(full);
  if (!full.is_last()) return;
  if (compresses_) {
    this_step_.gradient_norm = std::sqrt(this_step_.gradient_norm);
    this_step_.residual_norm = std::sqrt(this_step_.residual_norm);
    last_step_ = this_step_;
  }
  if (trial_ == nullptr) return;
  trial_->end_step(this_step_);
  // The next step may be compressed, so that no bucket may be left out of it.
  if (trial_->is_under_way()) finishes_early_ = false;
}

void CompressedReduction::finish_messages(const FullBucket& full, Bucket& bucket) {
  for (Exchange& exchange : bucket.exchanges) {
    if (exchange.gradients.empty()) continue;
    STRETTO_CHECK(exchange.next == Exchange::Next::nothing,
                  "bucket {} ends before its messages left", full.index);
    exchange.work.wait();
    const TimePoint begin = Clock::now();
    this_step_.exchange_seconds += seconds(begin - exchange.encoded);
    if (exchange.way == Way::factored) {
      multiply_factors(exchange);
    } else {
      decode(exchange);
    }
    const double spent = seconds(Clock::now() - begin);
    this_step_.decode_seconds += spent;
    this_step_.choices[full.index].codec_seconds += exchange.codec_seconds + spent;
    for (const Gradient* const gradient : exchange.gradients) {
      if (options_.measure_norms) this_step_.residual_norm += squares(gradient->residual);
    }
  }
  std::span<const float> plain = bucket.plain;
  for (std::size_t i = 0; i < full.gradients.size(); ++i) {
    if (has_codec(full.gradients[i])) continue;
    const std::span<float> values = floats(full.gradient_views[i]);
    std::ranges::copy(plain.first(values.size()), values.begin());
    plain = plain.subspan(values.size());
  }
}

void CompressedReduction::abandon(std::size_t bucket) {
  if (bucket >= buckets_.size()) return;
  std::array<Work, kCompressedWays> works;
  std::ranges::transform(buckets_[bucket]->exchanges, works.begin(),
                         [](Exchange& exchange) { return std::move(exchange.work); });
}

}  // namespace stretto
