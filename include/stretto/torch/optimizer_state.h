// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/communicator/communicator.h"

namespace stretto {

// Copies the settings (learning rates) and the state (momentum, moments) of the optimizer on rank
// `root` to all ranks, for ranks that join later or have fallen behind. All ranks have the same
// kind of optimizer for the same parameters, which do not change. The state is put on the devices
// of the parameters; each of these devices briefly holds all of it. `timeout` bounds each message;
// default: the communicator's. Collective, blocks. Throws what Communicator::broadcast() throws,
// and InvalidArgument on all ranks if the root's optimizer has a state that its class does not
// save(). If it throws, a rank's state is as before.
void broadcast_optimizer(torch::optim::Optimizer& optimizer, Communicator& communicator,
                         Rank root = 0, const std::optional<Duration>& timeout = std::nullopt);

}  // namespace stretto
