// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/parameters.h"
#include "stretto/torch_device/device_allocation.h"

#include <sstream>
#include <unordered_set>
#include <utility>

namespace stretto::ddp {

std::vector<torch::Tensor> distinct(std::vector<torch::Tensor> tensors) {
  std::unordered_set<const void*> seen;
  std::erase_if(tensors, [&](const torch::Tensor& tensor) {
    return !seen.insert(tensor.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

std::string list_text(at::IntArrayRef numbers) {
  std::ostringstream text;
  text << numbers;
  return text.str();
}

std::string text_of(const std::exception& error) {
  const auto* const of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
}

void check_described_alike(Communicator& communicator, const Status& refusal,
                           reducer::ReplicaItem options, std::vector<reducer::ReplicaItem> items,
                           const std::optional<Duration>& timeout) {
  options.facts.insert(options.facts.begin(),
                       {"refusal", refusal.ok() ? "none" : std::string(refusal.message())});
  items.insert(items.begin(), std::move(options));
  try {
    reducer::check_replicas_described_alike(communicator, items, timeout);
  } catch (const Error&) {
    refusal.or_throw();
    throw;
  }
  refusal.or_throw();
}

void check_same_parameters(Communicator& communicator, const Status& refusal,
                           reducer::ReplicaItem options,
                           const std::vector<torch::Tensor>& parameters,
                           const std::optional<Duration>& timeout) {
  std::vector<reducer::ReplicaItem> items;
  // A tensor that is refused may lack a shape or strides that would describe it.
  for (std::size_t i = 0; refusal.ok() && i < parameters.size(); ++i) {
    const torch::Tensor& parameter = parameters[i];
    if (!parameter.defined()) {
      items.push_back({"parameter", std::to_string(i), {{"shape", "none"}}});
      continue;
    }
    const bool has_strides = parameter.layout() == torch::kStrided;
    const std::string place = has_strides && are_of(communicator, {parameter})
                                  ? "the communicator's device"
                                  : c10::DeviceTypeName(parameter.device().type(), true);
    items.push_back({"parameter",
                     std::to_string(i),
                     {{"shape", list_text(parameter.sizes())},
                      {"strides", has_strides ? list_text(parameter.strides()) : "none"},
                      {"dtype", c10::toString(parameter.scalar_type())},
                      {"place", place}}});
  }
  check_described_alike(communicator, refusal, std::move(options), std::move(items), timeout);
}

}  // namespace stretto::ddp
