// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <utility>
#include <vector>

#include "stretto/reducer/communication_hook.h"
#include "stretto/torch/sparse_gradients.h"

namespace stretto {

// A communication hook of a DistributedDataParallel that sees the parameters as well. It may be
// inside another hook, but not inside a TwoLevelReduction, which hands out parts of gradients.
class ParameterHook : public CommunicationHook {
 public:
  // Called before each attach().
  void set_parameters(std::vector<ddp::NamedTensor> parameters) {
    parameters_ = std::move(parameters);
  }

 protected:
  // Entry i is the parameter of the gradient that `FullBucket::gradients` numbers i. While backward
  // runs with mixed precision, the parameters have MixedPrecision::parameter_dtype.
  const std::vector<ddp::NamedTensor>& parameters() const { return parameters_; }

 private:
  std::vector<ddp::NamedTensor> parameters_;
};

}  // namespace stretto
