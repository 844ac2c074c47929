// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"

namespace stretto::ddp {

// Names of parameters and buffers.
inline bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Each tensor once, where it comes first.
std::vector<torch::Tensor> distinct(std::vector<torch::Tensor> tensors);

// A shape, or strides.
std::string list_text(at::IntArrayRef numbers);

// Throws Mismatch on all ranks, with the first difference, unless all have as many parameters of
// the same shapes, strides and types, in this order and in the same places: so the bytes of a
// parameter mean the same everywhere. Collective, blocks.
void check_same_parameters(Communicator& communicator, const std::vector<torch::Tensor>& parameters,
                           const std::optional<Duration>& timeout);

}  // namespace stretto::ddp
