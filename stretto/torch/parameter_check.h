// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"

namespace stretto::ddp {

// Throws Mismatch on all ranks, with the first difference, unless all have as many parameters of
// the same shapes, strides and types, in this order and in the same places: so the bytes of a
// parameter mean the same everywhere. Collective, blocks.
void check_same_parameters(Communicator& communicator, const std::vector<torch::Tensor>& parameters,
                           const std::optional<Duration>& timeout);

}  // namespace stretto::ddp
