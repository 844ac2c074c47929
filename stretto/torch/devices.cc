// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/devices.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/refuse.h"
#include "stretto/torch/staged_reduction.h"
#include "stretto/torch/tensor_bytes.h"
#include "stretto/torch_device/device_buckets.h"
#include "stretto/torch_device/device_compression.h"
#include "stretto/torch_device/streams.h"

namespace stretto::ddp {
namespace {

std::string place_of(const NamedTensor& item) {
  return fmt::format("'{}' is on {}", item.name, item.tensor.device().str());
}

}  // namespace

BucketLocation choose_bucket_location(const std::vector<NamedTensor>& parameters,
                                      std::span<const GradientDescription> gradients,
                                      const Communicator& communicator,
                                      const CommunicationHook& hook,
                                      const DistributedDataParallelOptions& options) {
  if (parameters.empty() || options.mean_division != MeanDivision::after_sum) return {};
  const torch::Device device = parameters.front().tensor.device();
  const auto is_there = [&](const NamedTensor& each) { return each.tensor.device() == device; };
  if (device.is_cpu() || !std::ranges::all_of(parameters, is_there)) return {};
  const bool is_of_communicator = are_reduced_by(communicator, tensors_of(parameters));
  if (auto staged = hook.ending_in(std::make_shared<StagedReduction>(device))) {
    if (is_of_communicator) return {device, std::make_shared<CommunicatorBuckets>(device)};
    if (!has_addresses(device)) return {};
    return {device, std::make_shared<DeviceBuckets>(device), std::move(staged)};
  }
  if (!has_addresses(device) || options.compression != Compression::always) return {};
  auto compression = DeviceCompression::make(options.codec, options.exchange, gradients, device,
                                             communicator.size(), is_of_communicator);
  if (compression == nullptr) return {};
  return {device, std::make_shared<CompressedDeviceBuckets>(device), std::move(compression)};
}

torch::Tensor view_like(const torch::Tensor& parameter, const GradientStorage& storage,
                        torch::Device device) {
  auto maker = at::for_blob(storage.view.data, parameter.sizes());
  if (parameter.is_non_overlapping_and_dense()) maker.strides(parameter.strides());
  return maker.deleter([owner = storage.owner](void*) {})
      .options(torch::TensorOptions().dtype(parameter.scalar_type()).device(device))
      .target_device(device)
      .make_tensor();
}

std::vector<int> device_numbers(const std::vector<NamedTensor>& parameters) {
  std::vector<torch::Device> seen;
  std::vector<int> numbers;
  for (const NamedTensor& parameter : parameters) {
    const auto at = std::ranges::find(seen, parameter.tensor.device());
    numbers.push_back(static_cast<int>(at - seen.begin()));
    if (at == seen.end()) seen.push_back(parameter.tensor.device());
  }
  return numbers;
}

bool are_spread(const std::vector<NamedTensor>& parameters) {
  return std::ranges::any_of(device_numbers(parameters), [](int number) { return number > 0; });
}

void check_devices(const std::vector<NamedTensor>& parameters,
                   const std::vector<NamedTensor>& buffers, bool low_precision) {
  for (const auto* list : {&parameters, &buffers}) {
    for (const NamedTensor& item : *list) {
      if (item.tensor.is_meta()) refuse("{}, which has no memory; give it some", place_of(item));
    }
  }
  if (low_precision) check_on_cpu(parameters, "mixed_precision.parameter_dtype");
}

bool are_on_cpu(const std::vector<NamedTensor>& parameters) {
  return std::ranges::all_of(
      parameters, [](const NamedTensor& parameter) { return parameter.tensor.device().is_cpu(); });
}

void check_on_cpu(const std::vector<NamedTensor>& parameters, const std::string& what) {
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.device().is_cpu()) continue;
    refuse("{}, and {} works on the CPU only", place_of(parameter), what);
  }
}

void copy_to_device(const torch::Tensor& bucket, const torch::Tensor& parameter,
                    torch::Tensor& gradient) {
  const torch::NoGradGuard no_grad;
  if (!gradient.defined()) gradient = torch::empty_like(parameter);
  gradient.copy_(bucket);
}

}  // namespace stretto::ddp
