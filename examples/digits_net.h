// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include <torch/torch.h>

#include "examples/digits.h"

// The model and the data of 10_one_process.cc and 10_many_processes.cc, which know nothing of
// processes.

struct DigitsNetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv1(x));
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return torch::log_softmax(fc(x.flatten(1)), 1);
  }
  static torch::nn::Conv2d convolution(int in, int out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
  }
  torch::nn::Conv2d conv1 = register_module("conv1", convolution(1, 16));
  torch::nn::Conv2d conv2 = register_module("conv2", convolution(16, 32));
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(32 * 4 * 4, 10));
};
TORCH_MODULE(DigitsNet);

class DigitsData : public torch::data::datasets::Dataset<DigitsData> {
 public:
  explicit DigitsData(digits::Batch digits) : digits_(std::move(digits)) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {digits_.images[i], digits_.labels[i]};
  }
  std::optional<std::size_t> size() const override {
    return static_cast<std::size_t>(digits_.size());
  }

 private:
  digits::Batch digits_;
};

// How many of them the model reads rightly.
inline std::int64_t correct_of(DigitsNet& model, const digits::Batch& digits) {
  const torch::NoGradGuard no_grad;
  return model->forward(digits.images).argmax(1).eq(digits.labels).sum().item<std::int64_t>();
}
