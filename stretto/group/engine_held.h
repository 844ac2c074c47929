// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/mutex.h"

namespace stretto::group {

// Stands for an engine's lock (EngineLock) in Clang's thread safety analysis. One object stands for
// all engines of a process, because no function uses two.
struct STRETTO_CAPABILITY("the lock of the engine") EngineHeld {};
inline EngineHeld engine_held;

}  // namespace stretto::group
