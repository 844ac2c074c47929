// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

// The models that ./dev bench ddp trains. bench/drivers/ddp_models.py builds the same models in the
// same order from the same numbers, so that both start and go on with the same bits.
namespace stretto::bench {

class TrainedModel : public torch::nn::Module {
 public:
  // Logits, [examples, classes].
  virtual torch::Tensor forward(const torch::Tensor& input) = 0;
};

struct Batch {
  torch::Tensor input;
  torch::Tensor target;
};

// Four layers of 1024: four large gradients.
class Mlp : public TrainedModel {
 public:
  explicit Mlp(int width) {
    for (int i = 0; i < 4; ++i) {
      layers_.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
    }
  }
  torch::Tensor forward(const torch::Tensor& input) override {
    torch::Tensor x = layers_[0](input);
    for (std::size_t i = 1; i < layers_.size(); ++i) x = layers_[i](torch::relu(x));
    return x;
  }

 private:
  std::vector<torch::nn::Linear> layers_;
};

class ResidualImpl : public torch::nn::Module {
 public:
  ResidualImpl(int in, int out, int stride)
      : conv1_(register_module("conv1", convolution(in, out, 3, stride))),
        norm1_(register_module("norm1", torch::nn::BatchNorm2d(out))),
        conv2_(register_module("conv2", convolution(out, out, 3, 1))),
        norm2_(register_module("norm2", torch::nn::BatchNorm2d(out))) {
    if (stride == 1 && in == out) return;
    shortcut_ = register_module("shortcut", convolution(in, out, 1, stride));
    shortcut_norm_ = register_module("shortcut_norm", torch::nn::BatchNorm2d(out));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto inside = norm2_(conv2_(torch::relu(norm1_(conv1_(x)))));
    return torch::relu(inside + (shortcut_ ? shortcut_norm_(shortcut_(x)) : x));
  }
  static torch::nn::Conv2d convolution(int in, int out, int size, int stride) {
    return torch::nn::Conv2d(
        torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
  torch::nn::Conv2d shortcut_{nullptr};
  torch::nn::BatchNorm2d shortcut_norm_{nullptr};
};
TORCH_MODULE(Residual);

// ResNet-18: 62 gradients, and buffers.
class ResNet : public TrainedModel {
 public:
  ResNet(int channels, int classes) {
    stem_ = register_module("stem", ResidualImpl::convolution(3, channels, 7, 2));
    norm_ = register_module("norm", torch::nn::BatchNorm2d(channels));
    for (int stage = 0, in = channels; stage < 4; ++stage) {
      const int out = channels << stage;
      blocks_->push_back(Residual(in, out, stage == 0 ? 1 : 2));
      blocks_->push_back(Residual(out, out, 1));
      in = out;
    }
    register_module("blocks", blocks_);
    last_ = register_module("last", torch::nn::Linear(channels * 8, classes));
  }
  torch::Tensor forward(const torch::Tensor& input) override {
    const auto x = torch::max_pool2d(torch::relu(norm_(stem_(input))), 3, 2, 1);
    return last_(blocks_->forward(x).flatten(2).mean(2));
  }

 private:
  torch::nn::Conv2d stem_{nullptr};
  torch::nn::BatchNorm2d norm_{nullptr};
  torch::nn::Sequential blocks_;
  torch::nn::Linear last_{nullptr};
};

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int width, int heads)
      : heads_(heads),
        norm1_(register_module("norm1", norm(width))),
        qkv_(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        projection_(register_module("projection", torch::nn::Linear(width, width))),
        norm2_(register_module("norm2", norm(width))),
        up_(register_module("up", torch::nn::Linear(width, 4 * width))),
        down_(register_module("down", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto split = [&](const torch::Tensor& part) {
      return part.view({batch, length, heads_, width / heads_}).transpose(1, 2);
    };
    const auto parts = qkv_(norm1_(x)).chunk(3, -1);
    auto scores = split(parts[0]).matmul(split(parts[1]).transpose(-2, -1)) /
                  std::sqrt(static_cast<double>(width / heads_));
    const auto future = torch::ones({length, length}, x.options().dtype(torch::kBool)).triu(1);
    scores = torch::softmax(scores.masked_fill(future, -1e9), -1);
    const auto seen = scores.matmul(split(parts[2])).transpose(1, 2);
    x = x + projection_(seen.reshape({batch, length, width}));
    return x + down_(torch::gelu(up_(norm2_(x))));
  }

 private:
  static torch::nn::LayerNorm norm(int width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
  }
  int heads_;
  torch::nn::LayerNorm norm1_;
  torch::nn::Linear qkv_, projection_;
  torch::nn::LayerNorm norm2_;
  torch::nn::Linear up_, down_;
};
TORCH_MODULE(Block);

class Transformer : public TrainedModel {
 public:
  Transformer(int words, int context, int width, int heads, int blocks) {
    words_ = register_module("words", torch::nn::Embedding(words, width));
    places_ = register_module("places", torch::nn::Embedding(context, width));
    for (int i = 0; i < blocks; ++i) blocks_->push_back(Block(width, heads));
    register_module("blocks", blocks_);
    last_ = register_module("last",
                            torch::nn::Linear(torch::nn::LinearOptions(width, words).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& input) override {
    const auto x = words_(input) + places_(torch::arange(input.size(1), input.options()));
    return last_(blocks_->forward(x)).flatten(0, 1);
  }

 private:
  torch::nn::Embedding words_{nullptr}, places_{nullptr};
  torch::nn::Sequential blocks_;
  torch::nn::Linear last_{nullptr};
};

// Many gradients of 64 bytes: there is little but the fixed cost of each gradient.
class Crumbs : public TrainedModel {
 public:
  explicit Crumbs(int count) {
    for (int i = 0; i < count; ++i) {
      crumbs_.push_back(register_parameter("crumb" + std::to_string(i), torch::randn({16})));
    }
  }
  torch::Tensor forward(const torch::Tensor& input) override {
    return torch::stack(crumbs_) * input;
  }

 private:
  std::vector<torch::Tensor> crumbs_;
};

// The model of that name, from a fixed seed. Small models are for tests, and differ only in sizes.
// Null if there is no such model.
inline std::shared_ptr<TrainedModel> make_model(const std::string& name, bool small) {
  torch::manual_seed(1);
  if (name == "mlp") return std::make_shared<Mlp>(small ? 32 : 1024);
  if (name == "resnet") return std::make_shared<ResNet>(small ? 4 : 64, small ? 16 : 1000);
  if (name == "transformer") {
    return small ? std::make_shared<Transformer>(64, 8, 16, 2, 1)
                 : std::make_shared<Transformer>(2048, 64, 256, 8, 4);
  }
  if (name == "crumbs") return std::make_shared<Crumbs>(small ? 50 : 1000);
  return nullptr;
}

// This rank's part of a batch that is the same in every step.
inline Batch make_batch(const std::string& name, bool small, int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(100 + rank));
  if (name == "mlp") {
    const int width = small ? 32 : 1024, examples = small ? 8 : 64;
    return {torch::randn({examples, width}), torch::randint(0, width, {examples})};
  }
  if (name == "resnet") {
    const int image = small ? 32 : 64, examples = small ? 4 : 8, classes = small ? 16 : 1000;
    return {torch::randn({examples, 3, image, image}), torch::randint(0, classes, {examples})};
  }
  if (name == "transformer") {
    const int words = small ? 64 : 2048, context = small ? 8 : 64;
    return {torch::randint(0, words, {4, context}), torch::randint(0, words, {4 * context})};
  }
  return {torch::randn({16}), torch::randint(0, 16, {small ? 50 : 1000})};
}

}  // namespace stretto::bench
