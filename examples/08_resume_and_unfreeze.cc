// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What programs do around the training loop: checkpoints, parts that are frozen for a while, other
// types on the way and inside, metrics over all ranks, and replicas that are compared.
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

  const std::string state = std::string(argv[1]) + "/state";
  ddp.save_state(state, optimizer);  // Each rank its own file, with the optimizer's state.
  step();
  const std::uint64_t after = ddp.parameter_hash();
  ddp.load_state(state, optimizer);
  step();
  if (ddp.parameter_hash() != after) std::printf("the step is another one\n");

  stretto::DistributedDataParallelOptions options;
  options.mixed_precision = {.parameter_dtype = stretto::DType::bf16};
  options.mean_division = stretto::MeanDivision::before_sum;
  options.bucket_bytes = stretto::measured_bucket_bytes(*comm);
  options.verify_every_steps = 10;  // Names the first parameter that differs, and where.
  Net other;
  stretto::DistributedDataParallel rounded(other, *comm, options);
  torch::optim::Adam adam(rounded.parameters(), 0.01);
  for (int i = 0; i < 20; ++i) {
    const auto data = torch::randn({16, 8});
    adam.zero_grad();
    (rounded.forward(data).to(torch::kFloat) - data.sum(1, true)).pow(2).mean().backward();
    adam.step();  // All digits: parameters and gradients are f32 outside of forward and backward.
  }

  auto mean = loss.detach();
  comm->all_reduce(mean, {.op = stretto::ReduceOp::mean}).wait();
  ddp.verify_replicas();
  if (comm->rank() == 0) std::printf("mean loss %.3f\n", mean.item<double>());
}
