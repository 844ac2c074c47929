// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include <fmt/core.h>

namespace stretto::detail {

// Throws InternalError. Never returns.
[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const std::string& details);

}  // namespace stretto::detail

// Stops on a bug in stretto itself: if the condition is false, throws InternalError with a
// formatted explanation:
//   STRETTO_CHECK(chunk < chunk_count, "chunk {} of {}", chunk, chunk_count);
// Errors that a caller, a peer or the system can cause are a Status, not a check.
#define STRETTO_CHECK(condition, ...)                                                              \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::stretto::detail::check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)
