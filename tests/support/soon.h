// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>

#include "stretto/base/clock.h"

namespace stretto {

// For what takes no time unless something is wrong.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

}  // namespace stretto
