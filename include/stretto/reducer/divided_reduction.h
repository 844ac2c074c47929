// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "stretto/reducer/communication_hook.h"

namespace stretto {

// Where a mean over n ranks is divided by n.
enum class MeanDivision : std::uint8_t {
  // After the sum: one rounding. Sums of f16 and bf16 gradients are f32 and cannot overflow; but
  // values that are rounded to 16 bits for sending are then not yet divided.
  after_sum,
  // Before the sum, and before a communication hook sees the gradients, as in PyTorch: no sum can
  // overflow, but small values may become zero in f16.
  before_sum,
  // Before the sum by about the square root of n, a power of two so that nothing is rounded; after
  // it by the rest. For f16, whose range is narrow at both ends.
  half_each,
};

std::string_view name(MeanDivision division);

// Divides gradients before and after another hook, which computes their sum. Integers, and
// operations other than mean, pass unchanged.
class DividedReduction : public CommunicationHook {
 public:
  // `division` must not be after_sum, for which no hook is needed.
  explicit DividedReduction(MeanDivision division, std::shared_ptr<CommunicationHook> inner =
                                                       std::make_shared<PlainReduction>());

  std::string name() const override;
  Work start(Communicator& communicator, const FullBucket& bucket) override;
  void finish(const FullBucket& bucket) override;
  CommunicationHook* inner() const override { return inner_.get(); }

 private:
  MeanDivision division_;
  std::shared_ptr<CommunicationHook> inner_;
  double after_ = 1;  // Factor for results; depends on the number of ranks.
};

}  // namespace stretto
