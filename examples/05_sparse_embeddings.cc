// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// An embedding of which each batch uses few rows: only those travel.
//   build/release/bin/stretto run -n 2 -- build/release/bin/05_sparse_embeddings

#include <cstdio>

#include "stretto/torch.h"

namespace {

constexpr int kWords = 10000;
constexpr int kFeatures = 16;

// Tells from a few words which of two halves of the vocabulary they come from.
struct BagOfWordsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& words) {
    return torch::log_softmax(layer(embedding(words).mean(1)), 1);
  }
  torch::nn::Embedding embedding = register_module(
      "embedding",
      torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, kFeatures).sparse(true)));
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(kFeatures, 2));
};
TORCH_MODULE(BagOfWords);

}  // namespace

int main() {
  auto comm = stretto::join();
  BagOfWords model;
  stretto::DistributedDataParallel ddp(model, *comm);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(10.0));
  torch::manual_seed(static_cast<std::uint64_t>(100 + comm->rank().value()));

  double first_loss = 0;
  torch::Tensor loss;
  for (int step = 0; step < 60; ++step) {
    const auto labels = torch::randint(0, 2, {32});
    const auto words = torch::randint(0, 100, {32, 8}) + labels.unsqueeze(1) * (kWords / 2);
    optimizer.zero_grad();
    loss = torch::nll_loss(ddp.forward(words), labels);
    loss.backward();
    optimizer.step();
    if (step == 0) first_loss = loss.item<double>();
  }
  ddp.verify_replicas();
  const auto rows = model->embedding->weight.grad()._nnz();
  std::printf("loss %.3f, then %.3f; the last step moved %lld of %d rows\n", first_loss,
              loss.item<double>(), static_cast<long long>(rows), kWords);
}
