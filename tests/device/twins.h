// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "stretto/torch/distributed_data_parallel.h"
#include "tests/device/placed_model.h"

namespace stretto::testing {

inline torch::Tensor batch_of(int step, int rank, torch::Device device) {
  return random(static_cast<std::uint64_t>(step) * 10 + static_cast<std::uint64_t>(rank), {4, 6},
                device);
}

// Trains the same model on a device and on the CPU, and compares their gradients after each step.
// On the device each step is on a new stream. That stream waits for no other one, so stretto has to
// order what it keeps from step to step.
template <class Model>
class Twins {
 public:
  Twins(Communicator& communicator, const DistributedDataParallelOptions& options, Model here,
        Model there)
      : rank_(communicator.rank().value()),
        device_(device_of(communicator)),
        here_(std::move(here)),
        there_(std::move(there)),
        on_host_(here_, communicator, options),
        on_device_(there_, communicator, options) {
    synchronize(device_);
  }
  virtual ~Twins() = default;

  void step(int number, bool both = true, float factor = 1, bool begins = true) {
    const torch::Tensor batch = batch_of(number, rank_, torch::kCPU) * factor;
    if (begins) on_host_.zero_grad();
    on_host_.forward(batch, both).backward();
    if (begins) on_device_.zero_grad();
    use_new_stream(device_);
    on_device_.forward(batch.to(device_), both).backward();
    const auto here = here_->parameters(), there = there_->parameters();
    for (std::size_t i = 0; i < here.size(); ++i) {
      const torch::Tensor &expected = here[i].grad(), &found = there[i].grad();
      ASSERT_EQ(found.defined(), expected.defined()) << i;
      look_at(i, found);
      if (!expected.defined()) continue;
      EXPECT_EQ(found.device(), device_);
      const auto [relative, absolute] = tolerances(i, expected);
      EXPECT_TRUE(torch::allclose(found.cpu(), expected, relative, absolute, /*equal_nan=*/true))
          << "step " << number << ", parameter " << i;
    }
  }
  const CompressionStatistics& here() const { return *on_host_.last_compression(); }
  const CompressionStatistics& there() const { return *on_device_.last_compression(); }

 protected:
  // The relative and the absolute tolerance for the gradient of parameter `i`.
  virtual std::pair<double, double> tolerances(std::size_t i, const torch::Tensor& expected) = 0;
  // Called with each gradient of the device, which may be undefined.
  virtual void look_at(std::size_t i, const torch::Tensor& gradient) = 0;

  const int rank_;
  const torch::Device device_;
  Model here_, there_;

 private:
  DistributedDataParallel<Model> on_host_, on_device_;
};

}  // namespace stretto::testing
