// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/error.h"
#include "stretto/base/status.h"

namespace stretto::c10d_backend {

// Throws a failure as PyTorch's programs know it, with the text of the status: ValueError for a
// wrong argument, else DistBackendError, which last_failure() remembers.
[[noreturn]] void throw_for_torch(const Status& status);
// The last failure that this process threw as a DistBackendError, of which the program sees only
// the text. Ok if there was none since forget_failures().
Status last_failure();
void forget_failures();

// Throws ValueError for an argument or a call that makes no sense.
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw_for_torch({StatusCode::invalid_argument, fmt::format(format, std::forward<Args>(args)...)});
}

inline std::exception_ptr exception_for_torch(const Status& status) {
  try {
    throw_for_torch(status);
  } catch (...) {
    return std::current_exception();
  }
}

// Runs `call`, and turns the library's exceptions into PyTorch's.
template <class F>
auto for_torch(F&& call) {
  try {
    return std::forward<F>(call)();
  } catch (const Error& error) {
    throw_for_torch(error.status());
  }
}

}  // namespace stretto::c10d_backend
