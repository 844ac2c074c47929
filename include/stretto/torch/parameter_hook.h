// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <utility>
#include <vector>

#include "stretto/reducer/communication_hook.h"
#include "stretto/torch/sparse_gradients.h"

namespace stretto {

// A communication hook that sees the parameters as well, for buckets that a DistributedDataParallel
// hands to it, also from inside of other hooks.
class ParameterHook : public CommunicationHook {
 public:
  // Called before attach(), whenever that is.
  void set_parameters(std::vector<ddp::NamedTensor> parameters) {
    parameters_ = std::move(parameters);
  }

 protected:
  // Entry i belongs to gradient i of `FullBucket::gradients`. While backward runs with mixed
  // precision, they are in that type.
  const std::vector<ddp::NamedTensor>& parameters() const { return parameters_; }

 private:
  std::vector<ddp::NamedTensor> parameters_;
};

}  // namespace stretto
