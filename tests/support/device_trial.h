// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include "stretto/communicator/communicator.h"

namespace stretto::testing {

// Runs every collective on memory of this rank's device, which the communicator gives, and on
// memory of the host, and returns what has other bits, or nothing. The device is reached by the
// driver in that file (a double's, say), or by the system's if it is empty. Of several
// dtypes, in place and not, with a few and with many elements; all ranks together.
std::string difference_on_device(Communicator& ranks, const std::string& driver_file);

}  // namespace stretto::testing
