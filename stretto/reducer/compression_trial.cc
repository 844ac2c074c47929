// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/compression_trial.h"

#include <algorithm>
#include <cmath>

#include "stretto/base/log.h"

namespace stretto {

bool CompressedReduction::Trial::compresses(Communicator& communicator) {
  const std::size_t step = next_step_;
  next_step_ = (step + 1) % period_;
  if (step == 0) counted_ = {};
  if (step == kTrialSteps) decide(communicator);
  counts_ = step < kTrialSteps && step % kBlock != 0;
  compresses_ = step < kTrialSteps ? step / kBlock % 2 == 0 : decision_;
  begin_ = Clock::now();
  return compresses_;
}

void CompressedReduction::Trial::end_step(const CompressionStatistics& statistics) {
  if (statistics.buckets > 0) buckets_ = statistics.buckets;
  if (!counts_) return;
  const std::size_t way = compresses_ ? 1 : 0;
  seconds_[way][counted_[way]++] = seconds(Clock::now() - begin_);
}

// All ranks decide the same, since they have the same means of their medians: one step that
// something else held up decides nothing.
void CompressedReduction::Trial::decide(Communicator& communicator) {
  std::array<double, 2> medians = {};
  for (std::size_t way = 0; way < 2; ++way) {
    const auto middle = seconds_[way].begin() + kCounted / 2;
    std::ranges::nth_element(seconds_[way], middle);
    medians[way] = *middle;
  }
  communicator.all_reduce(medians, {.op = ReduceOp::mean}).wait();
  const auto [without, with] = medians;
  decision_ = with < without;
  period_ = decision_ ? kPeriod : std::min(2 * period_, kLongestPeriod);
  if (communicator.rank() != Rank(0)) return;
  log(LogLevel::info,
      "compression is {}: a step takes {:.3g} ms with it and {:.3g} ms without, from its first "
      "full bucket to its end; it {} {:.3g} ms for each of {} buckets",
      decision_ ? "on" : "off", with * 1e3, without * 1e3, decision_ ? "saves" : "would lose",
      std::abs(with - without) * 1e3 / static_cast<double>(buckets_), buckets_);
}

}  // namespace stretto
