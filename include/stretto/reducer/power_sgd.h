// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/reducer/communication_hook.h"

namespace stretto {

namespace reducer {
struct SavedState;
}

// Must be equal on all ranks.
struct PowerSgdOptions {
  std::size_t rank = 2;  // Of the matrices that stand for gradients, from 1 on.
  // Gradients with fewer elements travel as they are, and so do those that factors would not make
  // smaller.
  std::size_t min_elements = 1024;
  std::uint64_t seed = 0;  // Of the factors that the first step begins with.
};

// PowerSGD: a gradient, seen as a matrix of GradientDescription::rows rows (unknown: a square), is
// replaced by the product of two thin ones, which are found by one step of power iteration from
// those of the step before. Two all_reduces for each bucket, of rank * (rows + columns) numbers for
// each matrix in all; the second of a bucket leaves when the next bucket is full. What the product
// lacks of the gradient of this rank is added to its next gradient; the residual belongs to the
// gradient, by its name.
//
// Infinity or NaN makes the whole gradient NaN on all ranks, and begins it anew in the next step.
// Operations other than sum and mean throw InvalidArgument from start(). Memory: a residual for
// each gradient that is factored, and the factors.
class PowerSgdReduction : public CommunicationHook {
 public:
  // Throws InvalidArgument for rank 0.
  explicit PowerSgdReduction(const PowerSgdOptions& options = {});
  ~PowerSgdReduction() override;

  std::string name() const override;
  // Throws as CompressedReduction::attach() does.
  void attach(Communicator& communicator, std::span<const GradientDescription> gradients) override;
  Work start(Communicator& communicator, const FullBucket& bucket) override;
  void finish(const FullBucket& bucket) override;

  // Of this rank: residuals and the factors that the next step begins with, bit for bit.
  std::vector<std::byte> save() const override;
  // Throws InvalidArgument as CompressedReduction::load() does.
  void load(std::span<const std::byte> state) override;
  // See CompressedReduction::redistribute(); all get the factors.
  static std::vector<std::vector<std::byte>> redistribute(
      std::span<const std::vector<std::byte>> states, std::size_t ranks);

  // Elements that were sent in the last step, and those of the gradients that they stand for.
  std::size_t sent_elements() const { return last_sent_; }
  std::size_t gradient_elements() const { return last_elements_; }
  // Of the gradient of this name; empty if it is not factored.
  std::span<const float> residual(const std::string& name) const;

 private:
  struct Gradient;
  struct Exchange;

  void restore(const reducer::SavedState& state);
  void send_pending(Communicator& communicator);
  void find_left_factors(const FullBucket& bucket, Exchange& exchange);
  void find_right_factors(Exchange& exchange);

  const PowerSgdOptions options_;
  std::map<std::string, std::unique_ptr<Gradient>> gradients_;
  std::vector<Gradient*> by_index_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  Exchange* pending_ = nullptr;                  // Whose first all_reduce is on its way.
  std::unique_ptr<reducer::SavedState> loaded_;  // Until it is attached.
  int rank_ = 0;
  int ranks_ = 0;
  std::size_t sent_ = 0;
  std::size_t elements_ = 0;
  std::size_t last_sent_ = 0;
  std::size_t last_elements_ = 0;
};

}  // namespace stretto
