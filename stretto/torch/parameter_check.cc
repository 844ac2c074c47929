// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/parameter_check.h"

#include <sstream>
#include <string>

#include "stretto/reducer/replica_check.h"
#include "stretto/torch/devices.h"

namespace stretto::ddp {

void check_same_parameters(Communicator& communicator, const std::vector<torch::Tensor>& parameters,
                           const std::optional<Duration>& timeout) {
  std::vector<reducer::ReplicaItem> items;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const torch::Tensor& parameter = parameters[i];
    std::ostringstream shape, strides;
    shape << parameter.sizes();
    strides << parameter.strides();
    const std::string place = are_of(communicator, {parameter})
                                  ? "the communicator's device"
                                  : c10::DeviceTypeName(parameter.device().type(), true);
    items.push_back({"parameter",
                     std::to_string(i),
                     {{"shape", shape.str()},
                      {"strides", strides.str()},
                      {"dtype", c10::toString(parameter.scalar_type())},
                      {"place", place}}});
  }
  reducer::check_replicas_described_alike(communicator, items, timeout);
}

}  // namespace stretto::ddp
