// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What programs do around the training loop: checkpoints, parts that are frozen for a while, other
// types on the way, metrics over all ranks, and replicas that are compared.
//   build/release/bin/stretto run -n 2 -- build/release/bin/08_resume_and_unfreeze FOLDER

#include <cstdio>
#include <string>

#include "stretto/torch.h"

namespace {

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return head(torch::tanh(body(x))); }
  torch::nn::Linear body = register_module("body", torch::nn::Linear(8, 8));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8, 1));
};
TORCH_MODULE(Net);

}  // namespace

int main(int, char** argv) {
  auto comm = stretto::join();
  const std::string path = std::string(argv[1]) + "/model.pt";

  Net model;
  for (auto& parameter : model->body->parameters()) parameter.set_requires_grad(false);
  stretto::DistributedDataParallel ddp(
      model, *comm, {.communication_hook = std::make_shared<stretto::Bf16Reduction>()});
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  torch::manual_seed(static_cast<std::uint64_t>(comm->rank().value()));

  torch::Tensor loss;
  const auto step = [&] {
    const auto data = torch::randn({16, 8});
    optimizer.zero_grad();
    loss = (ddp.forward(data) - data.sum(1, true)).pow(2).mean();
    loss.backward();
    optimizer.step();
  };
  for (int i = 0; i < 20; ++i) step();

  for (auto& parameter : ddp->body->parameters()) parameter.set_requires_grad(true);
  for (int i = 0; i < 20; ++i) step();  // The next forward pass notices it, on all ranks.

  if (comm->rank() == 0) torch::save(ddp, path);
  comm->barrier().wait();
  torch::load(ddp, path);  // On all ranks; the next backward pass compares them.
  step();

  auto mean = loss.detach();
  stretto::all_reduce(*comm, mean, {.op = stretto::ReduceOp::mean}).wait();
  ddp.verify_replicas();
  if (comm->rank() == 0) std::printf("mean loss %.3f\n", mean.item<double>());
}
