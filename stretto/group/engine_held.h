// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/mutex.h"

namespace stretto::group {

// Stands for the lock of an engine (EngineLock) where Clang checks who holds it. There is one for
// all engines of a process, because no function uses two.
struct STRETTO_CAPABILITY("the lock of the engine") EngineHeld {};
inline EngineHeld engine_held;

}  // namespace stretto::group
