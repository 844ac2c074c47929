// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Training whose result has the same bits on any number of processes, here on handwritten digits:
//   for n in 1 2 3; do
//     build/release/bin/stretto run -n $n -- build/release/bin/14_any_number_of_ranks
//   done
// prints the same line three times.

#include <cstdio>

#include "examples/digits.h"
#include "stretto/torch.h"

namespace {

constexpr int kMicroBatches = 12;  // Of a step, whichever rank computes which.
constexpr int kImages = 16;        // Of a micro-batch.

}  // namespace

int main(int argc, char** argv) {
  auto comm = stretto::join();
  torch::set_num_threads(1);  // A sum by other numbers of threads has other bits.
  torch::manual_seed(1);      // The same parameters on all ranks.
  const auto data = digits::load(argc > 1 ? argv[1] : "data/digits.csv");
  torch::nn::Sequential model(torch::nn::Flatten(), torch::nn::Linear(64, 256), torch::nn::ReLU(),
                              torch::nn::Linear(256, 10), torch::nn::LogSoftmax(1));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  stretto::ReproducibleGradients gradients(model->parameters(), *comm);

  for (int step = 0; step < 50; ++step) {
    const auto order = digits::shuffled(data.size(), static_cast<std::uint64_t>(step));
    optimizer.zero_grad();
    for (int m = comm->rank().value(); m < kMicroBatches; m += comm->size()) {
      const auto batch = data.pick(order.slice(0, m * kImages, (m + 1) * kImages));
      torch::nll_loss(model->forward(batch.images), batch.labels).backward();
      gradients.add();
    }
    gradients.reduce();  // The mean over all micro-batches, in which order does not matter.
    optimizer.step();
  }
  if (comm->rank() != 0) return 0;
  double squares = 0;
  for (const torch::Tensor& parameter : model->parameters()) {
    squares += parameter.detach().to(torch::kDouble).square().sum().item<double>();
  }
  const torch::NoGradGuard no_grad;
  const auto right = model->forward(data.images).argmax(1).eq(data.labels).sum().item<double>();
  std::printf("%.1f %% are right, the squares of the parameters are %.17g\n",
              100 * right / static_cast<double>(data.size()), squares);
}
