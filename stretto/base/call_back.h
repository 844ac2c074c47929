// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/catch_all.h"
#include "stretto/base/log.h"

namespace stretto {

// Calls what the program wants to be called when an operation has ended. What that throws is
// logged: whoever calls it may be in the middle of somebody else's wait().
template <class Callback, class... Arguments>
void call_back(const Callback& callback, const Arguments&... arguments) {
  catch_all(
      [&] { callback(arguments...); },
      [](const char* what) { log(LogLevel::error, "a callback of an operation threw: {}", what); });
}

}  // namespace stretto
