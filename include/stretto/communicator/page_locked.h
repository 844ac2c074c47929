// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/communicator/memory.h"

namespace stretto {

// Page-locks host memory for device `number` of this process, as CUDA's driver counts, and for any
// other device that the process uses. Devices then copy from and to it at their full speed, while
// the host goes on. Returns the same memory, which is unlocked before it is freed. Does not wait
// for other ranks; waits for the driver, about as long as it takes to touch every page. If there is
// no driver, or it refuses, returns the memory unlocked: copies are slower then, and the log says
// so.
Memory page_locked(Memory memory, int number);

}  // namespace stretto
