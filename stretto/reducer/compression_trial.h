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

// Finds out whether steps are shorter with compression: a trial takes some steps each way, in
// turns; what all ranks together have measured decides for a long time. If the first compressed
// steps show that compression cannot pay, the trial ends early.
class CompressedReduction::Trial {
 public:
  // `codecs`: the names of the codecs, for the log.
  explicit Trial(std::string codecs = {}) : codecs_(std::move(codecs)) {}
  // Sets the time that the model of the links predicts for the messages of a step; 0: none.
  void expect(double exchange_seconds) { exchange_seconds_ = exchange_seconds; }
  // Called on all ranks when a step begins. Returns whether to compress it. Collective, and blocks,
  // only in steps in which a decision is due.
  bool compresses(Communicator& communicator, const std::optional<Duration>& timeout);
  // Whether this step belongs to a trial.
  bool is_under_way() const { return is_under_way_; }
  // Why this step is compressed, or is not.
  CompressionReason reason() const { return is_under_way_ ? CompressionReason::on_trial : reason_; }
  // The measurement behind the last decision.
  const std::optional<CompressionMeasurement>& measured() const { return measured_; }
  // Whether buckets of this step may finish early if it is not compressed. Not in uncounted steps
  // of a trial: buckets of its first step may be left out, perhaps the last one, which ends the
  // step.
  bool allows_early_finish() const { return !is_under_way_ || counts_; }
  // Called when the last bucket of the step has been decoded.
  void end_step(const CompressionStatistics& statistics);

 private:
  // kTrialSteps steps decide for kPeriod steps; each decision against compression doubles that.
  static constexpr std::size_t kTrialSteps = 16;
  static constexpr std::size_t kPeriod = 2048;
  static constexpr std::size_t kLongestPeriod = 32 * kPeriod;
  static constexpr std::size_t kBlock = 4;  // The first step of a block is not counted.
  static constexpr std::size_t kEarlySteps = kBlock + 2;  // The last two of these are compressed.
  static constexpr std::size_t kCounted = kTrialSteps / 2 / kBlock * (kBlock - 1);  // Each way.

  bool cannot_pay(Communicator& communicator, const std::optional<Duration>& timeout);
  void decide(Communicator& communicator, const std::optional<Duration>& timeout);
  void settle(CompressionReason reason, const CompressionMeasurement& measured);
  std::string described() const;

  std::array<std::array<double, kCounted>, 2> seconds_ = {};  // Of dense and compressed steps.
  std::array<std::size_t, 2> counted_ = {};
  double exchange_seconds_ = 0;
  std::array<double, kCounted> codec_seconds_ = {};  // Encoding and decoding, by compressed step.
  std::size_t period_ = kPeriod;
  std::size_t next_step_ = 0;               // Within the period.
  std::vector<BucketCompression> choices_;  // Of the last compressed step.
  bool is_under_way_ = false;
  bool counts_ = false;
  bool compresses_ = false;
  bool decision_ = true;
  CompressionReason reason_ = CompressionReason::measured;  // Of `decision_`.
  std::optional<CompressionMeasurement> measured_;
  const std::string codecs_;
  TimePoint begin_;
};

}  // namespace stretto
