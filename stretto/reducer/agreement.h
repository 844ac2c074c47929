// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include "stretto/communicator/communicator.h"

namespace stretto::reducer {

// Throws Mismatch, on all ranks, unless all name the same hook. Collective, blocks.
void check_same_hook(Communicator& communicator, const std::string& name);

// Throws InvalidArgument: the hook `name` is for f32, and another one has made `dtype` of it.
[[noreturn]] void refuse_converted(const std::string& name, DType dtype);

}  // namespace stretto::reducer
