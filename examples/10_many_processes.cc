// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// 10_one_process.cc for any number of processes; docs/from_one_process_to_many.md goes from the one
// to the other.
//   build/release/bin/stretto run -n 2 -- build/release/bin/10_many_processes data/digits.csv

#include <cstdio>
#include <exception>
#include <vector>

#include "examples/digits_net.h"
#include "stretto/torch.h"

constexpr int kTrain = 1536;
constexpr int kBatch = 64;

namespace {

void train(int argc, char** argv) {
  auto comm = stretto::join();
  const int rank = comm->rank().value();
  const auto all = digits::load(argc > 1 ? argv[1] : "data/digits.csv");
  const auto test = all.slice(kTrain, all.size());
  torch::manual_seed(1);
  DigitsNet model;
  stretto::DistributedDataParallel ddp(model, *comm);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int epoch = 0; epoch < 3; ++epoch) {
    torch::data::samplers::DistributedRandomSampler sampler(kTrain, comm->size(), rank);
    sampler.set_epoch(epoch);  // Another order in each epoch, the same one on all ranks.
    auto loader = torch::data::make_data_loader(
        DigitsData(all.slice(0, kTrain)).map(torch::data::transforms::Stack<>()), sampler,
        kBatch / comm->size());
    ddp.set_epoch(epoch);  // Finds out if ranks have different numbers of batches.
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(ddp.forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
    }
    const auto share = test.size() / comm->size() + 1;
    const auto own = test.slice(rank * share, (rank + 1) * share);
    std::vector<std::int64_t> counts = {correct_of(model, own), own.size()};
    comm->all_reduce(counts).wait();
    if (rank > 0) continue;
    const double accuracy = static_cast<double>(counts[0]) / static_cast<double>(counts[1]);
    std::printf("epoch %d: accuracy %.3f\n", epoch, accuracy);
  }
  if (argc > 2 && rank == 0) torch::save(ddp, argv[2]);
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);  // Of each process: they share the cores of this host.
  try {
    train(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());  // Which rank, what it did, and why it failed.
    return 1;
  }
}
