// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/devices.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/refuse.h"
#include "stretto/torch/device_buckets.h"
#include "stretto/torch/device_compression.h"
#include "stretto/torch/staged_reduction.h"
#include "stretto/torch/streams.h"
#include "stretto/torch/tensor_bytes.h"

namespace stretto::ddp {
namespace {

std::string place_of(const NamedTensor& item) {
  return fmt::format("'{}' is on {}", item.name, item.tensor.device().str());
}

// Whether indices of 32 bits name any element of all of them, were they in one bucket: with the
// gaps between gradients, half as many are enough for sure.
bool fit_one_bucket(const std::vector<NamedTensor>& parameters) {
  std::int64_t elements = 0;
  for (const NamedTensor& parameter : parameters) elements += parameter.tensor.numel();
  return elements < std::int64_t{1} << 31;
}

// Null where the host compresses.
std::unique_ptr<ExtractExchange> choose_exchange(const std::vector<NamedTensor>& parameters,
                                                 int ranks,
                                                 const DistributedDataParallelOptions& options,
                                                 torch::Device device, bool is_of_communicator) {
  if (const auto* const power_sgd = dynamic_cast<const PowerSgd*>(options.codec.get())) {
    if (!DeviceCompression::can_factor(parameters, power_sgd->rank())) return nullptr;
    return factored_exchange_by_host(power_sgd->rank(), device);
  }
  const auto codec = std::dynamic_pointer_cast<const Codec>(options.codec);
  if (codec == nullptr) return nullptr;
  const auto how = DeviceCompression::exchange_of(*codec, parameters, ranks, options.exchange);
  const auto extraction = codec->extraction(1, 0);
  const bool has_indices = extraction && !extraction->takes_all();
  const bool is_there = is_of_communicator && codec->has_fixed_length() &&
                        (!has_indices || fit_one_bucket(parameters));
  if (how == CompressedExchange::divide) {
    return is_there ? divided_exchange_on_device(codec, device) : nullptr;
  }
  if (how != CompressedExchange::gather) return nullptr;
  return is_there ? exchange_on_device(device) : exchange_by_host(codec, device);
}

}  // namespace

BucketLocation choose_bucket_location(const std::vector<NamedTensor>& parameters,
                                      const Communicator& communicator,
                                      const CommunicationHook& hook,
                                      const DistributedDataParallelOptions& options) {
  if (parameters.empty() || options.mean_division != MeanDivision::after_sum) return {};
  const torch::Device device = parameters.front().tensor.device();
  const auto is_there = [&](const NamedTensor& each) { return each.tensor.device() == device; };
  if (device.is_cpu() || !std::ranges::all_of(parameters, is_there)) return {};
  // Types of one byte can be moved there, and not added.
  const bool is_of_communicator =
      are_of(communicator, tensors_of(parameters)) &&
      std::ranges::none_of(parameters, [](const NamedTensor& parameter) {
        return parameter.tensor.element_size() == 1;
      });
  if (auto staged = hook.ending_in(std::make_shared<StagedReduction>(device))) {
    if (is_of_communicator) return {device, std::make_shared<CommunicatorBuckets>(device)};
    if (!has_addresses(device)) return {};
    return {device, std::make_shared<DeviceBuckets>(device), std::move(staged)};
  }
  if (!has_addresses(device) || options.compression != Compression::always) return {};
  auto exchange =
      choose_exchange(parameters, communicator.size(), options, device, is_of_communicator);
  if (exchange == nullptr) return {};
  return {device, std::make_shared<CompressedDeviceBuckets>(device),
          std::make_shared<DeviceCompression>(options.codec, device, std::move(exchange))};
}

// The kind of a device is told by where its memory is.
bool are_of(const Communicator& communicator, const std::vector<torch::Tensor>& tensors) {
  return communicator.device().has_value() &&
         std::ranges::all_of(tensors, [&](const torch::Tensor& tensor) {
           return !tensor.device().is_cpu() && tensor.device().index() == *communicator.device() &&
                  (tensor.numel() == 0 ||
                   communicator.device_of(tensor.const_data_ptr()).has_value());
         });
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
