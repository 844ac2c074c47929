// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Encoding and decoding: the messages that CompressedReduction makes of gradients and sums, and
// those that it receives.

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "stretto/codec/arithmetic.h"
#include "stretto/reducer/compressed_exchange.h"

namespace stretto {
namespace {

// The codec for whole sums (Way::combined).
const Codec& codec_of_whole_sums() {
  static const std::shared_ptr<const Codec> kNonzeros = nonzeros();
  return *kNonzeros;
}

}  // namespace

// The part that `adder` adds up, or the whole gradient if the exchange has no parts. `of_sum`: for
// the message of the sum.
CompressedReduction::Part CompressedReduction::part_of(const Exchange& exchange, std::size_t i,
                                                       std::size_t adder, bool of_sum) const {
  const Gradient& gradient = *exchange.gradients[i];
  const auto rank = static_cast<std::uint64_t>(rank_);
  const auto ranks = static_cast<std::size_t>(ranks_);
  Part part{.first = 0, .count = exchange.values[i].size(), .position = {}};
  const bool is_cut = exchange.has_parts() && are_worth_parts(part.count, ranks);
  if (exchange.has_parts()) {
    const AddedPart added = part_added_by(adder, part.count, gradient.owner, ranks);
    part.first = added.first;
    part.count = added.count;
  }
  part.position = {
      .step = step_ - 1,
      .own_key = own_key(gradient.key, is_cut ? adder + 1 : 0, rank + (of_sum ? ranks : 0)),
      .context_hash = context_hash_};
  return part;
}

// The greatest possible length of the messages for the parts of `adder`, or (`of_sum`) of its sums.
std::size_t CompressedReduction::longest(const Exchange& exchange, std::size_t adder,
                                         bool of_sum) const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    const Part part = part_of(exchange, i, adder, of_sum);
    if (exchange.has_parts() && part.count == 0) continue;
    bytes += codec_of(exchange, i, of_sum).max_message_bytes(part.count);
  }
  return bytes;
}

const Codec& CompressedReduction::codec_of(const Exchange& exchange, std::size_t i,
                                           bool of_sum) const {
  const bool is_whole_sum = of_sum && exchange.way == Way::combined;
  return is_whole_sum ? codec_of_whole_sums() : *exchange.gradients[i]->codec;
}

int CompressedReduction::divisor_of(const Exchange& exchange, std::size_t i) const {
  if (exchange.way != Way::divided) return 1;
  return divisor_of_sums(*exchange.gradients[i]->codec, ranks_);
}

// Appends the messages for the parts of `adder`, or (`of_sum`) of its sums; returns their length.
std::size_t CompressedReduction::encode_parts(Exchange& exchange, std::size_t adder, bool of_sum) {
  const std::size_t begin = exchange.own.size();
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    Gradient& gradient = *exchange.gradients[i];
    const Part part = part_of(exchange, i, adder, of_sum);
    if (exchange.has_parts() && part.count == 0) continue;
    const std::span<float> values = exchange.values[i].subspan(part.first, part.count);
    const int divisor = of_sum ? divisor_of(exchange, i) : 1;
    codec::divide(values, divisor);
    // The residual is not sent with a sum if the codec is bounded, because it may be what this rank
    // has clipped; nor with a whole sum; nor for a silent gradient.
    const bool is_silent = exchange.silent[i] != 0;
    const bool is_whole_sum = of_sum && exchange.way == Way::combined;
    const bool sets_aside = divisor > 1 || is_silent || is_whole_sum;
    std::span<float> carry, cleared;
    if (sets_aside) {
      aside_.assign(part.count, 0.0f);
      carry = aside_;
    } else {
      carry = std::span(gradient.residual).subspan(part.first, part.count);
      if (!options_.error_feedback) std::ranges::fill(carry, 0.0f);
      // A sum's message does not hold this rank's own momentum.
      const bool masks = options_.mask_momentum && !gradient.momentum.empty() && !of_sum;
      if (masks) cleared = std::span(gradient.momentum).subspan(part.first, part.count);
    }
    const std::size_t before = exchange.own.size();
    std::uint32_t* const hint = &gradient.hints[of_sum ? gradient.hints.size() - 1 : adder];
    this_step_.sent_values +=
        codec_of(exchange, i, of_sum)
            .encode({.carry = carry,
                     .gradient = values,
                     .position = part.position,
                     .non_finite = options_.non_finite,
                     .hint = is_silent ? nullptr : hint,
                     .cleared = cleared,
                     .stopped_by = of_sum ? exchange.stopped_by[i] : std::nullopt},
                    scratch_, exchange.own);
    if (sets_aside && !is_whole_sum) {  // A whole sum leaves no rest.
      const auto residual = std::span(gradient.residual).subspan(part.first, part.count);
      const auto factor = static_cast<float>(divisor);
      for (std::size_t e = 0; e < part.count; ++e) residual[e] += carry[e] * factor;
    }
    const std::size_t bytes = exchange.own.size() - before;
    this_step_.message_bytes += bytes;
    if (gradient.has_fixed_length || of_sum) continue;
    exchange.announced[rank_].encoded += bytes;
  }
  return exchange.own.size() - begin;
}

// Adds up the messages of all ranks for this rank's parts, and encodes the sums as this rank's
// messages. What these leave out joins the residual.
void CompressedReduction::add_up(Exchange& exchange) {
  const TimePoint begin = Clock::now();
  this_step_.exchange_seconds += seconds(begin - exchange.encoded);
  const auto own = static_cast<std::size_t>(rank_);
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    const Part part = part_of(exchange, i, own, false);
    std::ranges::fill(exchange.values[i].subspan(part.first, part.count), 0.0f);
  }
  std::span<const std::byte> rest = exchange.received;
  for (std::size_t rank = 0; rank < exchange.parts.recv_counts.size(); ++rank) {
    decode_parts(exchange, rest.first(exchange.parts.recv_counts[rank]), rank, own, false);
    rest = rest.subspan(exchange.parts.recv_counts[rank]);
  }
  this_step_.received_bytes += exchange.received.size() - exchange.parts.recv_counts[own];
  const TimePoint added = Clock::now();
  this_step_.decode_seconds += seconds(added - begin);
  exchange.own.clear();
  encode_parts(exchange, own, true);
  exchange.encoded = Clock::now();
  this_step_.encode_seconds += seconds(exchange.encoded - added);
  exchange.codec_seconds += seconds(exchange.encoded - begin);
}

// Adds the messages of rank `from` for the parts of `adder`, or (`of_sum`) of its sums.
void CompressedReduction::decode_parts(Exchange& exchange, std::span<const std::byte> messages,
                                       std::size_t from, std::size_t adder, bool of_sum) {
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    const Part part = part_of(exchange, i, adder, of_sum);
    if (exchange.has_parts() && part.count == 0) continue;
    const auto sums = exchange.values[i].subspan(part.first, part.count);
    const auto length =
        codec_of(exchange, i, of_sum).decode_add(messages, part.position, scratch_, sums);
    if (length.ok()) {
      messages = messages.subspan(length.value());
      continue;
    }
    const StatusCode code = length.status().code();
    if (code == StatusCode::invalid_argument && exchange.has_parts() && !of_sum) {
      // Only this rank knows. NaN in the sum stops all ranks, and `stopped_by` tells them the rank
      // to name. The step fails, so the rest need not be added.
      sums[0] = std::numeric_limits<float>::quiet_NaN();
      if (!exchange.stopped_by[i]) exchange.stopped_by[i] = Rank(static_cast<std::int32_t>(from));
      return;
    }
    refuse_message(exchange, i, from, exchange.has_parts() && of_sum, length.status());
  }
}

void CompressedReduction::refuse_message(const Exchange& exchange, std::size_t i, std::size_t from,
                                         bool is_of_sum, const Status& why) {
  // For a sum: the rank that has stopped it. If none is named, the rank that added it up.
  const std::optional<Rank> named = why.rank();
  const bool is_named = is_of_sum && named && *named < Rank(ranks_);
  const Rank whose = communicator_->job_rank(is_named ? *named : static_cast<int>(from));
  const Status status(
      why.code(),
      fmt::format("{} {} rank {}, in step {}: {}", exchange.gradients[i]->described(),
                  is_of_sum && !is_named ? "as added up by" : "of", whose.value(), step_,
                  why.message()),
      whose);
  // All ranks see a stop. Any other failure may be seen by this rank only, so the others are told.
  if (why.code() != StatusCode::invalid_argument) {
    communicator_->abort(std::string(status.message()));
  }
  status.or_throw();
}

// Calls use(rank, messages) for each rank with its messages, without their first `begin` bytes.
template <class Use>
void CompressedReduction::for_each_rank(const Exchange& exchange, std::size_t begin,
                                        const Use& use) {
  std::span<const std::byte> rest = exchange.all;
  for (std::size_t rank = 0; rank < exchange.lengths.size(); ++rank) {
    const std::size_t length = exchange.lengths[rank];
    use(rank, rest.first(length).subspan(std::min(begin, length)));
    rest = rest.subspan(length);
  }
}

// For gathered gradients if all their codecs have sections. The messages have fixed lengths, so
// that a gradient's message begins at the same place on all ranks.
void CompressedReduction::decode_by_sections(Exchange& exchange) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    const Codec& codec = *exchange.gradients[i]->codec;
    const std::span<float> values = exchange.values[i];
    const Part part = part_of(exchange, i, 0, false);
    std::size_t length = 0;
    for_each_rank(exchange, begin, [&](std::size_t rank, std::span<const std::byte> message) {
      const auto checked = codec.check(message, part.position, scratch_, values.size());
      if (!checked.ok()) refuse_message(exchange, i, rank, false, checked.status());
      length = checked.value();
    });
    for (std::size_t first = 0; first < values.size(); first += codec.section()) {
      const auto sums = values.subspan(first, std::min(codec.section(), values.size() - first));
      std::ranges::fill(sums, 0.0f);
      for_each_rank(exchange, begin, [&](std::size_t, std::span<const std::byte> message) {
        codec.add_section(message, values.size(), first, sums);
      });
      if (exchange.op == ReduceOp::mean) codec::divide(sums, ranks_);
    }
    begin += length;
  }
}

void CompressedReduction::decode(Exchange& exchange) {
  this_step_.received_bytes += exchange.all.size() - exchange.own.size();
  const auto has_sections = [](const Gradient* each) { return each->codec->section() > 0; };
  if (!exchange.has_parts() && std::ranges::all_of(exchange.gradients, has_sections)) {
    return decode_by_sections(exchange);
  }
  for (const std::span<float> values : exchange.values) std::ranges::fill(values, 0.0f);
  for_each_rank(exchange, 0, [&](std::size_t rank, std::span<const std::byte> messages) {
    decode_parts(exchange, messages, rank, rank, true);
  });
  for (std::size_t i = 0; i < exchange.gradients.size(); ++i) {
    const int divisor = divisor_of(exchange, i);
    if (divisor > 1) {
      for (float& value : exchange.values[i]) value *= static_cast<float>(divisor);
    }
    if (exchange.op == ReduceOp::mean) codec::divide(exchange.values[i], ranks_);
  }
}

}  // namespace stretto
