// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstdint>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/compressed_reduction.h"

namespace stretto {

// Finds out whether steps are shorter with compression: some steps each way, in turns, then what
// all ranks together have found holds for a long time.
class CompressedReduction::Trial {
 public:
  // Called when step `step` (counted from 0) begins, on all ranks. Returns whether to compress it.
  // Collective, and blocks, in the steps in which a decision is due.
  bool compresses(Communicator& communicator, std::uint64_t step);
  // When the last bucket has been decoded.
  void end_step();

 private:
  // So many steps in turns decide for this many.
  static constexpr std::uint64_t kTrialSteps = 16;
  static constexpr std::uint64_t kPeriod = 2048;
  static constexpr std::uint64_t kBlock = 4;  // The first of each block is not counted.

  void decide(Communicator& communicator);

  std::array<double, 2> seconds_ = {};  // Without and with.
  std::uint64_t at_ = 0;                // In the period.
  bool counted_ = false;
  bool compresses_ = false;
  bool decision_ = true;
  TimePoint begin_;
};

}  // namespace stretto
