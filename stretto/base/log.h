// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <exception>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include "stretto/base/log_sink.h"

namespace stretto {

class Environment;

// Writes a line to standard error, or to the sink that the program has set. Thread safe.
void log_line(LogLevel level, std::string_view text);
bool log_enabled(LogLevel level);

// Called once by join(). Sets the prefix, which names the rank, for all following lines of this
// process, and the level from STRETTO_LOG (debug, info, warning, error, off; default warning).
void configure_log(const Environment& environment, const std::string& prefix);
// Returns what configure_log() warns of; empty if STRETTO_LOG is a level, or not set.
std::string mistake_of_log_level(const Environment& environment);

// Drops a line if there is no memory for it: threads and destructors call this, and an exception
// there would end the process.
template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::exception&) {
  }
}

}  // namespace stretto
