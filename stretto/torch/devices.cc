// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/devices.h"

#include "stretto/torch/refuse.h"

namespace stretto::ddp {
namespace {

std::string place_of(const NamedTensor& item) {
  return "'" + item.name + "' is on " + item.tensor.device().str();
}

}  // namespace

void check_devices(const std::vector<NamedTensor>& parameters,
                   const std::vector<NamedTensor>& buffers, bool low_precision) {
  for (const auto* list : {&parameters, &buffers}) {
    for (const NamedTensor& item : *list) {
      if (item.tensor.is_meta()) refuse(place_of(item) + ", which has no memory; give it some");
    }
  }
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.device() == parameters.front().tensor.device()) continue;
    refuse(place_of(parameter) + " and " + place_of(parameters.front()) +
           "; all parameters of a module must be on one device");
  }
  if (low_precision) check_on_cpu(parameters, "mixed_precision.parameter_dtype");
}

void check_on_cpu(const std::vector<NamedTensor>& parameters, const std::string& what) {
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.device().is_cpu()) continue;
    refuse(place_of(parameter) + ", and " + what + " works on the CPU only");
  }
}

void copy_to_device(const torch::Tensor& bucket, const torch::Tensor& parameter,
                    torch::Tensor& gradient) {
  const torch::NoGradGuard no_grad;
  if (!gradient.defined()) gradient = torch::empty_like(parameter);
  gradient.copy_(bucket);
}

}  // namespace stretto::ddp
