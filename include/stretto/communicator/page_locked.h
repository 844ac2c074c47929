// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/communicator/memory.h"

namespace stretto {

// The same memory of the host, locked for device `number` of this process, as CUDA's driver counts,
// and any other that the process uses: they copy to and from it by themselves, at their full speed,
// while the host goes on. Unlocked before it is freed. Does not wait for other ranks; waits for the
// driver, about as long as it takes to touch every page. What cannot be locked, because there is no
// driver or it refuses, is returned as it is: copies are slower then, and the log says so.
Memory page_locked(Memory memory, int number);

}  // namespace stretto
