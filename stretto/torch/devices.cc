// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/devices.h"

#include <algorithm>
#include <utility>

#include "stretto/base/refuse.h"
#include "stretto/torch/staged_reduction.h"
#include "stretto/torch/tensor_bytes.h"
#include "stretto/torch_device/device_buckets.h"
#include "stretto/torch_device/device_compression.h"
#include "stretto/torch_device/streams.h"

namespace stretto::ddp {

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

void check_on_cpu(const std::vector<NamedTensor>& parameters, const std::string& what) {
  for (const auto& [name, tensor] : parameters) {
    if (tensor.device().is_cpu()) continue;
    refuse("'{}' is on {}, and {} works on the CPU only", name, tensor.device().str(), what);
  }
}

}  // namespace stretto::ddp
