// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Batches larger than memory: gradients of several parts are added up on each rank, and only the
// last part's backward pass communicates.
//   build/release/bin/stretto run -n 2 -- build/release/bin/06_gradient_accumulation

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
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));

  constexpr int kParts = 4;
  const auto share = 256 / comm->size() / kParts;  // Images of a part.
  for (int step = 0; step < 30; ++step) {
    const auto order = digits::shuffled(data.size(), static_cast<std::uint64_t>(step));
    const auto backward = [&](int part) {
      const auto begin = (comm->rank().value() * kParts + part) * share;
      const auto batch = data.pick(order.slice(0, begin, begin + share));
      auto loss = torch::nll_loss(ddp.forward(batch.images), batch.labels) / kParts;
      loss.backward();
      return loss.item<double>() * kParts;
    };
    optimizer.zero_grad();
    for (int part = 0; part + 1 < kParts; ++part) {
      auto guard = ddp.no_sync();  // Forward and backward: nothing is sent.
      backward(part);
    }
    const double loss = backward(kParts - 1);  // The sum of all parts is averaged.
    optimizer.step();
    if (step % 10 == 9) std::printf("step %d: loss %.4f\n", step, loss);
  }
  ddp.verify_replicas();
}
