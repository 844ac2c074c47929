// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A small GPT learns the characters of a text, with one process or several:
//   build/release/bin/stretto run -n 2 -- build/release/bin/07_small_gpt ARCHITECTURE.md
// Further arguments: the number of steps, and a hook of gradient_hooks.h: "top_k 1 %", say;
// docs/measurements/convergence.md shows what they do.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <tuple>

#include "examples/gradient_hooks.h"
#include "stretto/torch.h"

namespace {

constexpr int kCharacters = 128;
constexpr int kContext = 32;
constexpr int kWidth = 48;
constexpr int kHeads = 4;
constexpr int kBlocks = 2;
constexpr int kGlobalBatch = 32;

struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0);
    const auto length = x.size(1);
    const auto heads = [&](const torch::Tensor& t) {
      return t.view({batch, length, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const auto parts = qkv(norm1(x)).chunk(3, -1);
    auto scores = heads(parts[0]).matmul(heads(parts[1]).transpose(-2, -1)) /
                  std::sqrt(static_cast<double>(kWidth) / kHeads);
    const auto future = torch::ones({length, length}, torch::kBool).triu(1);
    scores = torch::softmax(scores.masked_fill(future, -1e9), -1);
    const auto seen =
        scores.matmul(heads(parts[2])).transpose(1, 2).reshape({batch, length, kWidth});
    x = x + projection(seen);
    return x + down(torch::gelu(up(norm2(x))));
  }
  static torch::nn::LayerNorm norm() {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
  }
  torch::nn::LayerNorm norm1 = register_module("norm1", norm());
  torch::nn::LayerNorm norm2 = register_module("norm2", norm());
  torch::nn::Linear qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::Linear projection = register_module("projection", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
};
TORCH_MODULE(Block);

// The matrix that embeds characters predicts them, too: one parameter, used twice.
struct GptImpl : torch::nn::Module {
  GptImpl() {
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(Block());
  }
  torch::Tensor forward(const torch::Tensor& text) {
    const auto places = torch::arange(text.size(1));
    const auto x = blocks->forward(characters(text) + positions(places));
    return torch::nn::functional::linear(x, characters->weight);
  }
  torch::nn::Embedding characters =
      register_module("characters", torch::nn::Embedding(kCharacters, kWidth));
  torch::nn::Embedding positions =
      register_module("positions", torch::nn::Embedding(kContext, kWidth));
  torch::nn::Sequential blocks = register_module("blocks", torch::nn::Sequential());
};
TORCH_MODULE(Gpt);

torch::Tensor read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = torch::from_blob(const_cast<char*>(text.data()),
                                      {static_cast<std::int64_t>(text.size())}, torch::kByte);
  return bytes.to(torch::kLong).clamp_max(kCharacters - 1);
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  auto comm = stretto::join();
  const auto text = read_text(argc > 1 ? argv[1] : "ARCHITECTURE.md");
  const int steps = argc > 2 ? std::atoi(argv[2]) : 100;
  torch::manual_seed(1);
  Gpt model;
  const auto choice = gradient_hooks::named(argc > 3 ? argv[3] : "dense f32");
  const auto hook = choice.make();
  stretto::DistributedDataParallel ddp(model, *comm, {.communication_hook = hook});
  // Where ranks add up momentum before they compress, Adam has only its second moment.
  const std::tuple<double, double> betas(choice.has_momentum ? 0 : 0.9, 0.999);
  torch::optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(3e-3).betas(betas));

  double gradient_bytes = 0, sent = 0;
  for (const auto& parameter : ddp.parameters()) {
    gradient_bytes += 4.0 * static_cast<double>(parameter.numel());
  }
  const auto share = kGlobalBatch / comm->size();
  for (int step = 0; step < steps; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(step));  // One global batch for all ranks.
    const auto starts = torch::randint(0, text.size(0) - kContext - 1, {kGlobalBatch, 1});
    const auto own =
        starts.slice(0, comm->rank().value() * share, (comm->rank().value() + 1) * share);
    const auto windows = text.take(own + torch::arange(kContext + 1));
    const auto input = windows.slice(1, 0, kContext);
    const auto target = windows.slice(1, 1);
    optimizer.zero_grad();
    auto loss = torch::nn::functional::cross_entropy(ddp.forward(input).transpose(1, 2), target);
    loss.backward();
    torch::nn::utils::clip_grad_norm_(ddp.parameters(), 1.0);
    optimizer.step();
    sent += gradient_hooks::sent_bytes(choice, *hook, gradient_bytes);
    auto mean = loss.detach();
    comm->all_reduce(mean, {.op = stretto::ReduceOp::mean}).wait();
    if (step % 10 == 9 && comm->rank() == 0) {
      std::printf("%s: step %d: loss %.4f, sent %.0f bytes\n", choice.name.c_str(), step + 1,
                  mean.item<double>(), sent);
    }
  }
  ddp.verify_replicas();
}
