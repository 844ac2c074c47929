// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A program for one process, without stretto: what docs/from_one_process_to_many.md begins with.
//   build/release/bin/10_one_process data/digits.csv digits.pt

#include <cstdio>

#include <torch/torch.h>

#include "examples/digits_net.h"

constexpr int kTrain = 1536;
constexpr int kBatch = 64;

int main(int argc, char** argv) {
  const auto all = digits::load(argc > 1 ? argv[1] : "data/digits.csv");
  const auto test = all.slice(kTrain, all.size());
  torch::manual_seed(1);
  DigitsNet model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int epoch = 0; epoch < 3; ++epoch) {
    auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
        DigitsData(all.slice(0, kTrain)).map(torch::data::transforms::Stack<>()), kBatch);
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model->forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
    }
    const auto correct = static_cast<double>(correct_of(model, test));
    std::printf("epoch %d: accuracy %.3f\n", epoch, correct / static_cast<double>(test.size()));
  }
  if (argc > 2) torch::save(model, argv[2]);
}
