// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/error.h"
#include "stretto/base/status.h"

namespace stretto::c10d_backend {

// A failure as PyTorch's programs know it: ValueError for a wrong argument, else DistBackendError,
// with the text of the status. The latter is remembered.
[[noreturn]] void throw_for_torch(const Status& status);
// What this process was told last as a DistBackendError, of whose kind the program knows nothing
// but the text; ok: nothing since the failures before were forgotten.
Status last_failure();
void forget_failures();

// For an argument or a call that makes no sense.
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

// Runs `call`, of the library, whose exceptions become PyTorch's.
template <class F>
auto for_torch(F&& call) {
  try {
    return std::forward<F>(call)();
  } catch (const Error& error) {
    throw_for_torch(error.status());
  }
}

}  // namespace stretto::c10d_backend
