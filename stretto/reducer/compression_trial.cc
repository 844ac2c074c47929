// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/compression_trial.h"

#include "stretto/base/log.h"

namespace stretto {

bool CompressedReduction::Trial::compresses(Communicator& communicator, std::uint64_t step) {
  at_ = step % kPeriod;
  if (at_ == 0) seconds_ = {};
  if (at_ == kTrialSteps) decide(communicator);
  counted_ = at_ < kTrialSteps && at_ % kBlock != 0;
  compresses_ = at_ < kTrialSteps ? at_ / kBlock % 2 == 0 : decision_;
  begin_ = Clock::now();
  return compresses_;
}

void CompressedReduction::Trial::end_step() {
  if (counted_) seconds_[compresses_ ? 1 : 0] += seconds(Clock::now() - begin_);
}

// All ranks decide the same, since they have the same sums.
void CompressedReduction::Trial::decide(Communicator& communicator) {
  std::array<double, 2> sums = seconds_;
  communicator.all_reduce(sums, {.op = ReduceOp::mean}).wait();
  decision_ = sums[1] < sums[0];
  if (communicator.rank() != Rank(0)) return;
  constexpr double kCounted = kTrialSteps / 2.0 / kBlock * (kBlock - 1);
  log(LogLevel::info,
      "compression is {}: a step takes {:.3g} ms with it and {:.3g} ms without, from its first "
      "full "
      "bucket to its end",
      decision_ ? "on" : "off", sums[1] / kCounted * 1e3, sums[0] / kCounted * 1e3);
}

}  // namespace stretto
