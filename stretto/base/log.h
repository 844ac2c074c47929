// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>

#include <fmt/core.h>

namespace stretto {

class Environment;

enum class LogLevel { debug, info, warning, error, off };

// Lines go to standard error as "stretto [rank 3] warning: text". Thread safe.
void log_line(LogLevel level, std::string_view text);
bool log_enabled(LogLevel level);

// Called once by join(): the rank that every following line of this thread's process names, and the
// level from STRETTO_LOG (debug, info, warning, error, off; default warning).
void configure_log(const Environment& environment, std::string prefix);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace stretto
