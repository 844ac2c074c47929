// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"

namespace stretto {

// Makes the settings (learning rates) and the state (momentum, moments) of `root`'s optimizer
// everyone's: for ranks that come later, or have fallen behind. All have the same kind of optimizer
// for the same parameters, which stay as they are, and the state comes to their devices, each of
// which briefly holds all of it. `timeout`: of each message; default: the communicator's.
// Collective, blocks. Throws what Communicator::broadcast() throws, and InvalidArgument on all
// ranks if the root's optimizer has a state that its class does not save(); a rank's state is then
// as it was.
void broadcast_optimizer(torch::optim::Optimizer& optimizer, Communicator& communicator,
                         Rank root = 0, const std::optional<Duration>& timeout = std::nullopt);

}  // namespace stretto
