// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "examples/random.h"

// What the examples share: the handwritten digits of data/ (see data/README.md) and a sampler.
namespace digits {

struct Batch {
  torch::Tensor images;  // [n, 1, 8, 8] f32, 0 to 1.
  torch::Tensor labels;  // [n] i64.

  std::int64_t size() const { return labels.size(0); }
  Batch slice(std::int64_t begin, std::int64_t end) const {
    return {images.slice(0, begin, end), labels.slice(0, begin, end)};
  }
  Batch pick(const torch::Tensor& indices) const {
    return {images.index_select(0, indices), labels.index_select(0, indices)};
  }
};

// All images of digits.csv. Throws std::runtime_error if the file is not there or is not what it
// should be.
inline Batch load(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<float> pixels;
  std::vector<std::int64_t> labels;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::vector<float> values;
    for (std::string value; std::getline(fields, value, ',');) values.push_back(std::stof(value));
    if (values.size() != 65) throw std::runtime_error(path + ": a line has not 65 numbers");
    labels.push_back(static_cast<std::int64_t>(values.back()));
    for (std::size_t i = 0; i < 64; ++i) pixels.push_back(values[i] / 16);
  }
  const auto count = static_cast<std::int64_t>(labels.size());
  return {torch::tensor(pixels).reshape({count, 1, 8, 8}), torch::tensor(labels)};
}

// The numbers below `count` in an order that depends on nothing but `seed`: every rank shuffles
// alike.
inline torch::Tensor shuffled(std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  Random random(seed);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return torch::tensor(order);
}

}  // namespace digits
