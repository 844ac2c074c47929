// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/compression_trial.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/base/name_in.h"

namespace stretto {
namespace {

// "0-2, 4"; `numbers` ascend.
std::string in_ranges(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

std::string_view name(CompressionReason reason) {
  return name_in({"always", "never", "dense_steps", "warm_up", "on_trial", "measured", "predicted",
                  "too_small", "no_codec", "left_out"},
                 reason, "unknown reason");
}

bool CompressedReduction::Trial::compresses(Communicator& communicator,
                                            const std::optional<Duration>& timeout) {
  if (codecs_.empty()) return false;  // No gradient has a codec: nothing to find out.
  if (next_step_ == 0) counted_ = {};
  if (next_step_ == kEarlySteps && cannot_pay(communicator, timeout)) next_step_ = kTrialSteps;
  const std::size_t step = next_step_;
  if (step == kTrialSteps && counted_[1] == kCounted) decide(communicator, timeout);
  next_step_ = (step + 1) % period_;
  is_under_way_ = step < kTrialSteps;
  counts_ = is_under_way_ && step % kBlock != 0;
  compresses_ = is_under_way_ ? step / kBlock % 2 == 1 : decision_;
  begin_ = Clock::now();
  return compresses_;
}

void CompressedReduction::Trial::end_step(const CompressionStatistics& statistics) {
  if (!counts_) return;
  const std::size_t way = compresses_ ? 1 : 0;
  if (compresses_) {
    choices_ = statistics.choices;
    codec_seconds_[counted_[way]] = statistics.encode_seconds + statistics.decode_seconds;
  }
  seconds_[way][counted_[way]++] = seconds(Clock::now() - begin_);
}

void CompressedReduction::Trial::settle(CompressionReason reason,
                                        const CompressionMeasurement& measured) {
  decision_ = measured.saved_seconds > 0;
  reason_ = reason;
  measured_ = measured;
  period_ = decision_ ? kPeriod : std::min(2 * period_, kLongestPeriod);
}

// "top_k(0.01): encode+decode 11.4 ms, rest 2.1 ms (dense 9.8) -> slower by 3.7 ms; disabled for
// buckets 0-5".
std::string CompressedReduction::Trial::described() const {
  std::vector<std::size_t> compressed;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].compressed) compressed.push_back(i);
  }
  const bool is_predicted = reason_ == CompressionReason::predicted;
  return fmt::format(
      "{}: encode+decode {:.3g} ms, {} {:.3g} ms{} (dense {:.3g}) -> {} by {:.3g} ms{}; {} for "
      "bucket{} {}",
      codecs_, measured_->codec_seconds * 1e3, is_predicted ? "messages" : "rest",
      measured_->other_seconds * 1e3, is_predicted ? " as predicted" : "",
      measured_->dense_seconds * 1e3, decision_ ? "faster" : "slower",
      std::abs(measured_->saved_seconds) * 1e3, is_predicted ? " or more" : "",
      decision_ ? "enabled" : "disabled", compressed.size() == 1 ? "" : "s", in_ranges(compressed));
}

// Codecs run on the thread that makes gradients, so a compressed step takes at least their time.
// All ranks get the same means.
bool CompressedReduction::Trial::cannot_pay(Communicator& communicator,
                                            const std::optional<Duration>& timeout) {
  const auto begin = seconds_[0].begin();
  double means[] = {*std::min_element(begin, begin + static_cast<std::ptrdiff_t>(counted_[0])),
                    codec_seconds_[0]};
  communicator.all_reduce(std::span<double>(means), {.op = ReduceOp::mean, .timeout = timeout})
      .wait();
  const auto [without, codec] = means;
  const double saves = without - codec - exchange_seconds_;
  if (saves >= 0) return false;
  settle(CompressionReason::predicted, {.dense_seconds = without,
                                        .codec_seconds = codec,
                                        .other_seconds = exchange_seconds_,
                                        .saved_seconds = saves});
  if (communicator.rank() == Rank(0)) log(LogLevel::info, "{}", described());
  return true;
}

// All ranks decide the same, from the same means of their medians; with medians, one delayed step
// decides nothing. A step is compared with that of the block before, so that slower changes of the
// machine's speed affect both.
void CompressedReduction::Trial::decide(Communicator& communicator,
                                        const std::optional<Duration>& timeout) {
  std::array<double, kCounted> saved = {};
  std::ranges::transform(seconds_[0], seconds_[1], saved.begin(), std::minus<>());
  for (auto* const each : {&saved, &seconds_[0], &codec_seconds_}) std::ranges::sort(*each);
  const auto middle = [](const std::array<double, kCounted>& sorted) {
    return (sorted[(kCounted - 1) / 2] + sorted[kCounted / 2]) / 2;
  };
  double means[] = {middle(seconds_[0]), middle(codec_seconds_), middle(saved), saved.front(),
                    saved.back()};
  communicator.all_reduce(std::span<double>(means), {.op = ReduceOp::mean, .timeout = timeout})
      .wait();
  const auto [without, codec, saves, least, most] = means;
  // Medians of different steps need not add up.
  settle(CompressionReason::measured, {.dense_seconds = without,
                                       .codec_seconds = codec,
                                       .other_seconds = std::max(0.0, without - saves - codec),
                                       .saved_seconds = saves});
  if (communicator.rank() != Rank(0)) return;
  log(LogLevel::info,
      "{} (steps from their first full bucket to their end; saved in {} pairs: {:.3g} to {:.3g} "
      "ms)",
      described(), kCounted, least * 1e3, most * 1e3);
}

}  // namespace stretto
