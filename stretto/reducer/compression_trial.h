// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/compressed_reduction.h"

namespace stretto {

// Finds out whether steps are shorter with compression: some steps each way, in turns, then what
// all ranks together have found holds for a long time. Where the first compressed steps show that
// it cannot pay, there are no more of them.
class CompressedReduction::Trial {
 public:
  // `codecs`: what compresses, for the log.
  explicit Trial(std::string codecs = {}) : codecs_(std::move(codecs)) {}
  // What the model of the links predicts for the messages of a step; 0 if it says nothing.
  void expect(double exchange_seconds) { exchange_seconds_ = exchange_seconds; }
  // Called when a step begins, on all ranks. Returns whether to compress it. Collective, and
  // blocks, in the steps in which a decision is due.
  bool compresses(Communicator& communicator, const std::optional<Duration>& timeout);
  // Whether this step is one of those that a decision is made of.
  bool is_under_way() const { return is_under_way_; }
  // Why it is compressed, or is not.
  CompressionReason reason() const { return is_under_way_ ? CompressionReason::on_trial : reason_; }
  // What the last decision was made by.
  const std::optional<CompressionMeasurement>& measured() const { return measured_; }
  // Whether its buckets may finish early, if it is not compressed. Not in the first step of a
  // trial: some of its buckets may be left out, perhaps the last, which would tell that it ends.
  bool allows_early_finish() const { return !is_under_way_ || counts_; }
  // When the last bucket of the step has been decoded.
  void end_step(const CompressionStatistics& statistics);

 private:
  // So many steps in turns decide for this many; each time that says no, for twice as many.
  static constexpr std::size_t kTrialSteps = 16;
  static constexpr std::size_t kPeriod = 2048;
  static constexpr std::size_t kLongestPeriod = 32 * kPeriod;
  static constexpr std::size_t kBlock = 4;                // The first of each block is not counted.
  static constexpr std::size_t kEarlySteps = kBlock + 2;  // The last two of these are compressed.
  static constexpr std::size_t kCounted = kTrialSteps / 2 / kBlock * (kBlock - 1);  // Each way.

  bool cannot_pay(Communicator& communicator, const std::optional<Duration>& timeout);
  void decide(Communicator& communicator, const std::optional<Duration>& timeout);
  void settle(CompressionReason reason, const CompressionMeasurement& measured);
  std::string described() const;

  std::array<std::array<double, kCounted>, 2> seconds_ = {};  // Of steps without and with.
  std::array<std::size_t, 2> counted_ = {};
  double exchange_seconds_ = 0;
  std::array<double, kCounted> codec_seconds_ = {};  // Of steps with: encoding and decoding.
  std::size_t period_ = kPeriod;
  std::size_t next_step_ = 0;               // In the period.
  std::vector<BucketCompression> choices_;  // Of the last compressed step.
  bool is_under_way_ = false;
  bool counts_ = false;
  bool compresses_ = false;
  bool decision_ = true;
  CompressionReason reason_ = CompressionReason::measured;  // For the decision.
  std::optional<CompressionMeasurement> measured_;
  const std::string codecs_;
  TimePoint begin_;
};

}  // namespace stretto
