// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A rank of a training job to which something happens in the middle of a backward pass:
//   backward_rank_program SIGNAL STEP GRADIENT [seconds that an operation may take]
// Prints "ready PID", and trains. In backward pass STEP, when autograd has made gradient GRADIENT,
// rank 1 prints "now" and sends itself SIGNAL (0: none). At the end a rank prints "trained HASH" of
// the parameters, or "failed TYPE: text" and ends with status 3.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "stretto/torch.h"
#include "tests/end_to_end/rank_program.h"

namespace {

constexpr int kSteps = 20;
constexpr int kInputs = 32;

struct Event {
  int signal = 0;
  int step = 0;
  std::size_t gradient = 0;
};

void train(const Event& event, std::chrono::seconds timeout) {
  auto comm = stretto::join({.join_timeout = std::chrono::seconds(50)});
  torch::manual_seed(1);
  torch::nn::Sequential model;
  for (int i = 0; i < 4; ++i) {
    model->push_back(torch::nn::Linear(kInputs, kInputs));
    model->push_back(torch::nn::Tanh());
  }
  // There is about one bucket per layer, so some are under way while others are still to come.
  stretto::DistributedDataParallel ddp(model, *comm, {.bucket_bytes = {4096}, .timeout = timeout});
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  int step = 0;
  model->parameters()[event.gradient].register_hook([&](const torch::Tensor& gradient) {
    if (event.signal != 0 && comm->rank() == stretto::Rank(1) && step == event.step) {
      std::printf("now\n");
      std::fflush(stdout);
      ::raise(event.signal);
    }
    return gradient;
  });
  std::printf("ready %d\n", ::getpid());
  std::fflush(stdout);
  for (; step < kSteps; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(100 * step + comm->rank().value()));
    optimizer.zero_grad();
    ddp.forward(torch::randn({16, kInputs})).square().mean().backward();
    optimizer.step();
  }
  std::printf("trained %016llx\n", static_cast<unsigned long long>(ddp.parameter_hash()));
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 4) return 2;
  torch::set_num_threads(1);
  ::signal(SIGTERM, SIG_IGN);  // From the launcher: ranks shall end by what the library tells them.
  const Event event{std::atoi(arguments[1]), std::atoi(arguments[2]),
                    static_cast<std::size_t>(std::atoi(arguments[3]))};
  try {
    train(event, std::chrono::seconds(argument_count > 4 ? std::atoi(arguments[4]) : 600));
  } catch (const stretto::Error& error) {
    std::printf("failed %s: %s\n", stretto::testing::type_of(error), error.what());
    return 3;
  }
  return 0;
}
