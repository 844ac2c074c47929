// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Uses an installed stretto::torch: one backward pass whose gradient is the mean of all ranks.

#include <cstdio>

#include <stretto/torch.h>

int main() {
  auto comm = stretto::join();
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  stretto::DistributedDataParallel ddp(model, *comm);
  const auto input = torch::full({1, 1}, static_cast<double>(comm->rank().value()));
  ddp.forward(input).sum().backward();
  std::printf("rank %d: the gradient is %g\n", comm->rank().value(),
              model->weight.grad().item<double>());
}
