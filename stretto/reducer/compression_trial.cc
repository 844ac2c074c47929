// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/compression_trial.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "stretto/base/log.h"

namespace stretto {

bool CompressedReduction::Trial::compresses(Communicator& communicator,
                                            const std::optional<Duration>& timeout) {
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
  if (statistics.buckets > 0) {
    buckets_ = statistics.buckets;
    codec_seconds_ = statistics.encode_seconds + statistics.decode_seconds;
  }
  if (!counts_) return;
  const std::size_t way = compresses_ ? 1 : 0;
  seconds_[way][counted_[way]++] = seconds(Clock::now() - begin_);
}

void CompressedReduction::Trial::settle(bool decision) {
  decision_ = decision;
  period_ = decision ? kPeriod : std::min(2 * period_, kLongestPeriod);
}

// Codecs work on the thread that has the gradients, so a compressed step is at least as long as
// they take. All ranks get the same means.
bool CompressedReduction::Trial::cannot_pay(Communicator& communicator,
                                            const std::optional<Duration>& timeout) {
  const auto begin = seconds_[0].begin();
  double means[] = {*std::min_element(begin, begin + static_cast<std::ptrdiff_t>(counted_[0])),
                    codec_seconds_};
  communicator.all_reduce(std::span<double>(means), {.op = ReduceOp::mean, .timeout = timeout})
      .wait();
  const auto [without, codec] = means;
  if (codec + exchange_seconds_ <= without) return false;
  settle(false);
  if (communicator.rank() == Rank(0)) {
    log(LogLevel::info,
        "compression is off: a step takes {:.3g} ms without it, while encoding and decoding alone "
        "take {:.3g} ms, and messages {:.3g} ms as the model of the links predicts; it would lose "
        "{:.3g} ms or more for each of {} buckets",
        without * 1e3, codec * 1e3, exchange_seconds_ * 1e3,
        (codec + exchange_seconds_ - without) * 1e3 / static_cast<double>(buckets_), buckets_);
  }
  return true;
}

// All ranks decide the same, since they have the same means of their medians: one step that
// something else held up decides nothing. Steps are compared with those a block before them, so
// that what a machine does for longer than that is on both sides.
void CompressedReduction::Trial::decide(Communicator& communicator,
                                        const std::optional<Duration>& timeout) {
  std::array<double, kCounted> saved = {};
  std::ranges::transform(seconds_[0], seconds_[1], saved.begin(), std::minus<>());
  std::ranges::sort(saved);
  std::ranges::sort(seconds_[0]);
  const auto middle = [](const std::array<double, kCounted>& sorted) {
    return (sorted[(kCounted - 1) / 2] + sorted[kCounted / 2]) / 2;
  };
  double means[] = {middle(seconds_[0]), middle(saved), saved.front(), saved.back()};
  communicator.all_reduce(std::span<double>(means), {.op = ReduceOp::mean, .timeout = timeout})
      .wait();
  const auto [without, saves, least, most] = means;
  settle(saves > 0);
  if (communicator.rank() != Rank(0)) return;
  log(LogLevel::info,
      "compression is {}: a step takes {:.3g} ms without it, from its first full bucket to its "
      "end; it {} {:.3g} ms for each of {} buckets (a step with it saves {:.3g} ms, in {} pairs of "
      "steps from {:.3g} to {:.3g})",
      decision_ ? "on" : "off", without * 1e3, decision_ ? "saves" : "would lose",
      std::abs(saves) * 1e3 / static_cast<double>(buckets_), buckets_, saves * 1e3, kCounted,
      least * 1e3, most * 1e3);
}

}  // namespace stretto
