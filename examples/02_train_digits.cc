// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Several processes train one model on handwritten digits:
//   build/release/bin/stretto run -n 2 -- build/release/bin/02_train_digits data/digits.csv

#include <cstdio>

#include "examples/digits.h"
#include "stretto/torch.h"

int main(int argc, char** argv) {
  auto comm = stretto::join();
  const auto data = digits::load(argc > 1 ? argv[1] : "data/digits.csv");
  torch::nn::Sequential model(torch::nn::Flatten(), torch::nn::Linear(64, 256), torch::nn::ReLU(),
                              torch::nn::Linear(256, 10), torch::nn::LogSoftmax(1));
  stretto::DistributedDataParallel ddp(model, *comm);  // Rank 0's parameters are everyone's now.
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));

  const auto share = 128 / comm->size();  // Images of each global batch that are this rank's.
  for (int step = 0; step < 100; ++step) {
    const auto order = digits::shuffled(data.size(), static_cast<std::uint64_t>(step));
    const auto begin = comm->rank().value() * share;
    const auto batch = data.pick(order.slice(0, begin, begin + share));
    optimizer.zero_grad();
    auto loss = torch::nll_loss(ddp.forward(batch.images), batch.labels);
    loss.backward();   // Each bucket of gradients leaves as soon as it is full.
    optimizer.step();  // Gradients are the mean over all ranks.
    if (step % 20 == 0) std::printf("step %d: loss %.4f\n", step, loss.item<double>());
  }
}
