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

// Gradients that have the same bits with any number of ranks. The batch of a step is cut into
// micro-batches, always the same ones, and it does not matter which rank computes which:
//
//   stretto::ReproducibleGradients gradients(model->parameters(), *communicator);
//   optimizer.zero_grad();  // What the last reduce() has made.
//   for (int m = rank; m < kMicroBatches; m += ranks) {
//     loss_of(model, micro_batch(step, m)).backward();  // Without DistributedDataParallel.
//     gradients.add();
//   }
//   gradients.reduce();  // grad() is the mean over all micro-batches.
//   optimizer.step();
//
// So training gives the same parameters on one process and on many, and after processes have died
// or joined (ElasticJob), where a micro-batch gives the same gradient everywhere: by the same
// processors, with as many threads of PyTorch (torch::set_num_threads), and no state of a rank's
// own, such as the statistics of BatchNorm or random numbers that are not of the micro-batch.
//
// ReproducibleSum says what each element costs. reduce() communicates after the backward passes,
// not during them. Threads: one at a time. The communicator must outlive it.
class ReproducibleGradients {
 public:
  // Dense parameters of f32, f16 or bf16 on the CPU, the same on all ranks; their values are not
  // touched, and must be equal on all ranks. Collective, blocks. `timeout`: of each operation;
  // default: the communicator's. Throws, on all ranks, Mismatch if they have different parameters,
  // InvalidArgument if all have parameters of another kind.
  ReproducibleGradients(std::vector<torch::Tensor> parameters, Communicator& communicator,
                        const std::optional<Duration>& timeout = std::nullopt);

  // Takes the gradients of one micro-batch, so that none are left. Parameters that have none count
  // as zeros. Does not block. Throws InvalidArgument for sparse gradients, and for those that
  // reduce() has made, to which a backward pass has added because nobody has called zero_grad();
  // then nothing has been taken.
  void add();

  // Makes the mean over the micro-batches that all ranks have added since the last one the
  // gradients of the parameters, and returns their number. A parameter that no rank had a gradient
  // of has none. If a value in any of them is not finite, or is 2^24 or more, or if there are more
  // than 2^20 micro-batches, all are NaN: skip the step. Collective, blocks. Throws what
  // collectives throw; then neither this object nor the communicator is of use any more.
  std::int64_t reduce();

 private:
  Communicator& communicator_;
  const std::optional<Duration> timeout_;
  std::vector<torch::Tensor> parameters_;
  std::vector<std::size_t> begins_;  // Where each begins in the sum.
  // So many micro-batches, and so many gradients of each parameter.
  std::vector<std::int64_t> added_;
  std::vector<torch::Tensor> made_;  // By the last reduce().
  std::optional<ReproducibleSum> sum_;
};

}  // namespace stretto
