// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

#include <torch/torch.h>

#include "tests/support/torch_models.h"

// Models on the double of a device (tests/support/fake_device).
namespace stretto::testing {

// Registers the device with PyTorch. Its streams are up to 2 ms late.
void load_fake_device();
// Loads the device and returns the rank's own one, since autograd has one thread per device.
torch::Device device_of(const Communicator& communicator);
// Makes a stream the calling thread's current one.
void use_new_stream(torch::Device device);
void use_default_stream(torch::Device device);
// Returns the devices, one bit each, that have got a context since the last call because they were
// a thread's current one while an event of another device was used.
unsigned devices_come_back_to();
// Waits for all work on the calling thread's current stream.
void synchronize(torch::Device device);

inline torch::Tensor random(std::uint64_t seed, torch::IntArrayRef shape, torch::Device device) {
  return with_seed(seed, [&] { return torch::randn(shape); }).to(device);
}

// Two layers, of which forward() may leave out the second, and a factor that is a buffer.
struct PlacedImpl : torch::nn::Module {
  PlacedImpl(torch::Device device, std::uint64_t seed)
      : first(register_parameter("first", random(seed, {4, kInputs}, device))),
        second(register_parameter("second", random(seed + 1, {4, 4}, device))),
        factor(register_buffer("factor", random(seed + 2, {4}, device))) {}
  torch::Tensor forward(const torch::Tensor& x, bool both) {
    hidden = torch::tanh(torch::mm(x, first.t())) * factor;
    return (both ? torch::mm(hidden, second) : hidden).pow(2).mean();
  }
  torch::Tensor first, second, factor, hidden;
};
TORCH_MODULE(Placed);

inline constexpr int kHidden = 256;

// Two weights that are large enough for a codec, and a bias that is not.
struct WideImpl : torch::nn::Module {
  WideImpl(torch::Device device, std::uint64_t seed, int features = kHidden)
      : first(register_parameter("first", random(seed, {features, kInputs}, device))),
        second(register_parameter("second", random(seed + 1, {4, features}, device))),
        bias(register_parameter("bias", random(seed + 2, {4}, device))) {}
  torch::Tensor forward(const torch::Tensor& x, bool both) {
    hidden = torch::tanh(torch::mm(x, first.t()));
    return (both ? torch::mm(hidden, second.t()) + bias : hidden).pow(2).mean();
  }
  torch::Tensor first, second, bias, hidden;
};
TORCH_MODULE(Wide);

inline torch::Tensor share_of(int step, int rank, torch::Device device) {
  return part(global_batch(step), rank).data.to(device);
}

inline void expect_same_parameters(const Placed& model, const Placed& reference) {
  expect_close(model->first.cpu(), reference->first, "first");
  expect_close(model->second.cpu(), reference->second, "second");
  expect_close(model->factor.cpu(), reference->factor, "factor");
}

}  // namespace stretto::testing
