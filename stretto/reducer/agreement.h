// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include "stretto/communicator/communicator.h"

namespace stretto::reducer {

// Throws Mismatch, on all ranks, unless all name the same hook. Collective, blocks.
void check_same_hook(Communicator& communicator, const std::string& name);

}  // namespace stretto::reducer
