// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cxxabi.h>

#include <exception>

namespace stretto {

// Calls `function`. Whatever it throws, also what is no std::exception, ends here: `handler` gets a
// text about it. Only the end of the thread goes on: pthread_exit(), by which Python ends threads
// that come back to it after its own end, unwinds the stack like an exception that nobody may keep.
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
