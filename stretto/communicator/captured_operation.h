// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/communicator/work.h"

namespace stretto::communicator {

// A Work for calls that a CUDA graph captures and that end there as `ends` (Work::is_captured()).
// Blocks until `begun`, which is what was submitted, has ended: then they are in the graph, in
// front of what the program does next. Throws as its wait(). `last`: which the last of them is.
Work make_captured(Work begun, Collective last, std::vector<std::shared_ptr<DeviceEnd>> ends);

}  // namespace stretto::communicator
