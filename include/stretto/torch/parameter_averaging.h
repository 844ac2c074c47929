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
  // Number of steps from one average to the next.
  int period = 1;
  // Number of parts of the parameters; they take turns, and each average is of one part.
  int partitions = 1;
  // Number of first steps without averages of parameters; gradients are averaged instead in these
  // (post-local SGD).
  std::uint64_t warm_up_steps = 0;
  // Bounds each average, and the constructor's comparison. Default: the communicator's timeout.
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
// Inside join(), where UnevenInputsOptions::joinables must name it, an average is over the ranks
// that have stepped since the average before. So a rank without data contributes once more, to the
// first average after its last step; it still gets all later averages. When the loop has ended, one
// more average follows, of steps that are not averaged yet.
//
// If an average fails, because a rank died for instance, the values of parameters are undefined: go
// back to a checkpoint.
//
// Threads: one at a time. The communicator must outlive it.
class ParameterAveraging : public Joinable {
 public:
  // `parameters` are dense, and the same on all ranks; those on devices are copied to the host for
  // an average, and back. Collective, blocks. Throws InvalidArgument for other parameters, and for
  // a period or a number of partitions below 1; other ranks then throw Mismatch with the reason.
  // Throws Mismatch on all ranks, with the first difference, if parameters or options differ.
  ParameterAveraging(std::vector<torch::Tensor> parameters, Communicator& communicator,
                     ParameterAveragingOptions options = {});

  // Call it after each step of the optimizer, on all ranks equally often. Returns whether it has
  // averaged. An average is collective and blocks.
  bool after_step();
  // Averages all parameters now: at the end of training, or before a checkpoint. Collective,
  // blocks.
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
  std::vector<bool> has_news_;  // Of each partition: this rank has stepped since its last average.
  std::uint64_t steps_ = 0;
};

}  // namespace stretto
