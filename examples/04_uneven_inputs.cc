// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Ranks that have different numbers of batches train together until the last one has none left:
//   build/release/bin/stretto run -n 3 -- build/release/bin/04_uneven_inputs data/digits.csv

#include <cstdio>

#include "examples/digits.h"
#include "stretto/torch.h"

int main(int argc, char** argv) {
  auto comm = stretto::join();
  const auto data = digits::load(argc > 1 ? argv[1] : "data/digits.csv");
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Flatten(), torch::nn::Linear(64, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 10), torch::nn::LogSoftmax(1));
  stretto::DistributedDataParallel ddp(model, *comm);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));

  const int batches = 20 + 5 * comm->rank().value();  // Not the same on all ranks.
  const auto first = comm->rank().value() * 300;
  int steps = 0;
  ddp.join([&] {
    for (int batch = 0; batch < batches; ++batch, ++steps) {
      const auto begin = first + batch * 8;
      const auto part = data.slice(begin, begin + 8);
      optimizer.zero_grad();
      torch::nll_loss(ddp.forward(part.images), part.labels).backward();
      optimizer.step();
    }
  });
  ddp.verify_replicas();  // Those who ended early have what the last one has trained.
  std::printf("rank %d: %d steps, parameters %016llx\n", comm->rank().value(), steps,
              static_cast<unsigned long long>(ddp.parameter_hash()));
}
