// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cxxabi.h>

#include <exception>

namespace stretto {

// Calls `function`. Any exception that it throws, of any type, ends here: `handler` gets a text
// about it. Only pthread_exit() continues: it unwinds the stack like an exception that may not be
// swallowed. Python uses it to end threads that come back to the interpreter after its end.
template <class Function, class Handler>
void catch_all(const Function& function, const Handler& handler) {
  try {
    function();
  } catch (abi::__forced_unwind&) {
    throw;
  } catch (const std::exception& failure) {
    handler(failure.what());
  } catch (...) {
    handler("something that is no std::exception was thrown");
  }
}

}  // namespace stretto
