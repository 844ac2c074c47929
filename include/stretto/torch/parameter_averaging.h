// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/base/reduce_op.h"
#include "stretto/communicator/communicator.h"
#include "stretto/torch/joinable.h"

namespace stretto {

// Must be equal on all ranks.
struct ParameterAveragingOptions {
  // So many steps from one average to the next.
  int period = 1;
  // Each time one of so many parts of the parameters is averaged, in turn.
  int partitions = 1;
  // The first steps after which nothing is averaged, because gradients are (post-local SGD).
  std::uint64_t warm_up_steps = 0;
  // Bounds each average, and the comparison when it is built. Default: the communicator's.
  std::optional<Duration> timeout = std::nullopt;
};

// Ranks train on their own and average parameters now and then, instead of gradients in each step:
//
//   stretto::ParameterAveraging averaging(model->parameters(), *communicator, {.period = 8});
//   loss.backward();   // Without DistributedDataParallel, or inside its no_sync().
//   optimizer.step();
//   averaging.after_step();
//
// period = H is local SGD; partitions = P with a period of 1 averages a P-th of the parameters in
// each step (SINGA's partial update), so that ranks never drift apart for more than P steps. The
// state of optimizers stays each rank's own. Ranks should start from the same values: build a
// DistributedDataParallel, or call average_all().
//
// Inside join() (UnevenInputsOptions::joinables names it) an average is that of the ranks which
// have stepped since the one before: those that have data, and in the first average after its last
// step a rank that has none left. It gets all averages. When the loop has ended, there is one more
// of what ranks have not averaged yet.
//
// An average that fails, as when a rank dies, leaves parameters with undefined values: go back to a
// checkpoint.
//
// Threads: one at a time. The communicator must outlive it.
class ParameterAveraging : public Joinable {
 public:
  // Dense parameters, the same on all ranks; those on devices are copied to the host for an
  // average, and back. Collective, blocks. Throws InvalidArgument for others, and for a period or a
  // number of partitions below 1; else Mismatch, on all ranks, with the first difference of
  // parameters or options, or with what another rank refuses.
  ParameterAveraging(std::vector<torch::Tensor> parameters, Communicator& communicator,
                     ParameterAveragingOptions options = {});

  // To be called after each step of the optimizer, on all ranks equally often. Returns whether it
  // has averaged, which is collective and blocks.
  bool after_step();
  // All parameters, now: at the end of training, or before a checkpoint. Collective, blocks.
  void average_all();

  // For checkpoints: how often after_step() was called.
  std::uint64_t steps() const { return steps_; }
  void set_steps(std::uint64_t steps) { steps_ = steps; }

 private:
  void follow(std::uint64_t what) override;
  void finish(Rank last) override;
  std::string describe(std::uint64_t what) const override;
  void average_in_turn();
  void average_everything();
  void average(const std::vector<torch::Tensor>& parameters, ReduceOp op);
  void average_news(const std::vector<std::size_t>& partitions);
  void average_some(const std::vector<torch::Tensor>& parameters, bool has_news,
                    double contributors);

  const ParameterAveragingOptions options_;
  std::vector<std::vector<torch::Tensor>> partitions_;
  std::vector<bool> has_news_;  // Of each: steps since its last average.
  std::uint64_t steps_ = 0;
};

}  // namespace stretto
