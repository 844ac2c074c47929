// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/communicator/reproducible_sum.h"

namespace stretto {

// Computes gradients that have the same bits with any number of ranks. A program always cuts the
// batch of a step into the same micro-batches, and any rank may compute any of them:
//
//   stretto::ReproducibleGradients gradients(model->parameters(), *communicator);
//   optimizer.zero_grad();  // Clears the gradients that the last reduce() has made.
//   for (int m = rank; m < kMicroBatches; m += ranks) {
//     loss_of(model, micro_batch(step, m)).backward();  // Without DistributedDataParallel.
//     gradients.add();
//   }
//   gradients.reduce();  // grad() is the mean over all micro-batches.
//   optimizer.step();
//
// So training gives the same parameters on one process and on many, and after processes have died
// or joined (ElasticJob), if a micro-batch gives the same gradient on each rank. For that, ranks
// need the same kind of processor, the same number of PyTorch's threads (torch::set_num_threads),
// and no state of their own, such as the statistics of BatchNorm, or random numbers that do not
// depend on the micro-batch only.
//
// For memory and bytes sent for each element see ReproducibleSum. reduce() communicates after the
// backward passes, not during them. Threads: one at a time. The communicator must outlive it.
class ReproducibleGradients {
 public:
  // `parameters` are dense, of f32, f16 or bf16, on the CPU, and the same on all ranks. Their
  // values must be equal on all ranks, and do not change. Collective, blocks. `timeout` bounds each
  // operation; default: the communicator's. Throws on all ranks: Mismatch if ranks have different
  // parameters, InvalidArgument if all have parameters of another kind.
  ReproducibleGradients(std::vector<torch::Tensor> parameters, Communicator& communicator,
                        const std::optional<Duration>& timeout = std::nullopt);

  // Adds the gradients of one micro-batch, and sets them to none. A missing gradient counts as
  // zeros. Does not block. Throws InvalidArgument, and adds nothing, for sparse gradients, and for
  // a gradient that reduce() has made: zero_grad() was not called before the backward pass.
  void add();

  // Sets the gradients of the parameters to the mean over the micro-batches that all ranks have
  // added since the last reduce(), and returns the number of these. A parameter for which no rank
  // had a gradient gets none. If any added value is not finite, or is 2^24 or more, or if there are
  // more than 2^20 micro-batches, all gradients are NaN: skip the step. Collective, blocks. Throws
  // what collectives throw; then neither this object nor the communicator can be used any more.
  std::int64_t reduce();

 private:
  Communicator& communicator_;
  const std::optional<Duration> timeout_;
  std::vector<torch::Tensor> parameters_;
  std::vector<std::size_t> begins_;  // Where each begins in the sum.
  // The number of micro-batches, and of gradients of each parameter.
  std::vector<std::int64_t> added_;
  std::vector<torch::Tensor> made_;  // By the last reduce().
  std::optional<ReproducibleSum> sum_;
};

}  // namespace stretto
