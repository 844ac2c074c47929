// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What an optimizer can do besides stepping after backward. In each of these ways a model learns
// the same sine, with several processes:
//   stretto run -n 2 -- build/release/bin/09_optimizers after|in-backward|sharded|local|partial

#include <cstdint>
#include <cstdio>
#include <string>

#include "stretto/torch.h"

namespace {

constexpr int kSteps = 200;
using Loss = torch::Tensor;

struct Task {
  stretto::Communicator& comm;
  torch::nn::Sequential model =
      torch::nn::Sequential(torch::nn::Linear(1, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32),
                            torch::nn::Tanh(), torch::nn::Linear(32, 1));

  // In each step each rank draws points of its own.
  torch::Tensor points(int step) const {
    torch::manual_seed(static_cast<std::uint64_t>(step * comm.size() + comm.rank().value()));
    return torch::rand({32, 1}) * 6 - 3;
  }
};

template <class Model>
Loss loss_of(Model& model, const torch::Tensor& x) {
  return torch::mse_loss(model.forward(x), torch::sin(x));
}

void step_after_backward(Task& task) {
  stretto::DistributedDataParallel ddp(task.model, task.comm);
  torch::optim::Adam optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-2));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(ddp, task.points(step)).backward();
    optimizer.step();
  }
}

void step_in_backward(Task& task) {
  stretto::DistributedDataParallel ddp(task.model, task.comm);
  torch::optim::Adam optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-2));
  ddp.step_in_backward(optimizer);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(ddp, task.points(step)).backward();  // Steps, too, bucket by bucket.
  }
}

void share_out_state(Task& task, const std::string& path) {
  stretto::DistributedDataParallel ddp(task.model, task.comm);
  torch::optim::Adam optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-2));
  stretto::ShardedOptimizer sharded(optimizer, task.comm);
  for (int step = 0; step < kSteps; ++step) {
    sharded.zero_grad();
    loss_of(ddp, task.points(step)).backward();
    sharded.step();  // Each rank its share; then all have all parameters.
  }
  if (path.empty()) return;
  sharded.gather_state();
  if (task.comm.rank() == 0) torch::save(optimizer, path);  // As without ShardedOptimizer.
}

void average_parameters(Task& task, const stretto::ParameterAveragingOptions& options) {
  stretto::DistributedDataParallel ddp(task.model, task.comm);  // All start from rank 0's values.
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1));
  stretto::ParameterAveraging averaging(ddp.parameters(), task.comm, options);
  const auto guard = ddp.no_sync();  // No rank waits for others in backward().
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(ddp, task.points(step)).backward();
    optimizer.step();
    averaging.after_step();
  }
  averaging.average_all();
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  const std::string way = argc > 1 ? argv[1] : "after";
  auto comm = stretto::join();
  torch::manual_seed(1);
  Task task{*comm};
  if (way == "in-backward") {
    step_in_backward(task);
  } else if (way == "sharded") {
    share_out_state(task, argc > 2 ? argv[2] : "");
  } else if (way == "local") {
    average_parameters(task, {.period = 8});
  } else if (way == "partial") {
    average_parameters(task, {.partitions = 4});
  } else {
    step_after_backward(task);
  }
  const torch::Tensor x = torch::linspace(-3, 3, 100).unsqueeze(1);
  double sum = 0;
  for (const auto& p : task.model->parameters()) sum += p.abs().sum().item<double>();
  std::printf("rank %d: loss %.6f, sum %.9f\n", comm->rank().value(),
              loss_of(*task.model, x).item<double>(), sum);
}
