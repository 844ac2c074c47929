// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "stretto/reducer/communication_hook.h"

namespace stretto {

// Where the mean of n ranks' gradients is divided by n.
enum class MeanDivision : std::uint8_t {
  // The sum is: one rounding. For f16 and bf16 gradients the sum is an f32 and cannot overflow; but
  // values that were rounded to 16 bits before they are sent are not yet divided then.
  after_sum,
  // Each rank's gradients are, before a communication hook sees them, as in PyTorch: no sum can
  // overflow, small values may become zero in f16.
  before_sum,
  // By about the square root of n before the sum, a power of two so that this rounds nothing, and
  // by the rest after it: for f16, where both ends of the range are near.
  half_each,
};

std::string_view name(MeanDivision division);

// Divides gradients before and after another hook, which computes their sum. Sums and other
// operations than the mean, and integers, pass unchanged.
class DividedReduction : public CommunicationHook {
 public:
  // `division` is not after_sum, for which no hook is needed.
  explicit DividedReduction(MeanDivision division, std::shared_ptr<CommunicationHook> inner =
                                                       std::make_shared<PlainReduction>());

  std::string name() const override;
  Work start(Communicator& communicator, const FullBucket& bucket) override;
  void finish(const FullBucket& bucket) override;
  CommunicationHook* inner() const override { return inner_.get(); }

 private:
  MeanDivision division_;
  std::shared_ptr<CommunicationHook> inner_;
  double after_ = 1;  // What results are multiplied by; follows from the number of ranks.
};

}  // namespace stretto
