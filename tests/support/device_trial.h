// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include "stretto/communicator/communicator.h"

namespace stretto::testing {

// Runs every collective both on device memory, which the communicator allocates, and on host
// memory, with several dtypes, in place and not, with few and with many elements. Returns a text
// about the first result whose bits differ, or nothing. All ranks call it together. `driver_file`:
// the driver by which it copies to and from the device, such as a double's; empty: the system's.
std::string difference_on_device(Communicator& ranks, const std::string& driver_file);

}  // namespace stretto::testing
