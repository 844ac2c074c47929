// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <string>
#include <thread>

#include "stretto/base/status.h"

namespace stretto {

// Starts a thread that runs `function`. `name` is what debuggers and `top -H` show (at most 15
// bytes). Fails with system, and a sentence that says which limits to look at, where the system
// allows no further thread. An exception that leaves `function` ends the thread with a line in the
// log, not the process.
Result<std::thread> start_thread(const std::string& name, std::function<void()> function);

}  // namespace stretto
