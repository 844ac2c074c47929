// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/catch_all.h"
#include "stretto/base/log.h"

namespace stretto {

// Calls a callback that the program has set for the end of an operation. Exceptions that it throws
// are logged and not passed on, because the calling thread may be inside another caller's wait().
template <class Callback, class... Arguments>
void call_back(const Callback& callback, const Arguments&... arguments) {
  catch_all(
      [&] { callback(arguments...); },
      [](const char* what) { log(LogLevel::error, "a callback of an operation threw: {}", what); });
}

}  // namespace stretto
