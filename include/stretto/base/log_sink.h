// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <string_view>

namespace stretto {

enum class LogLevel { debug, info, warning, error, off };

// Receives a line of this library's log, such as "stretto [rank 3] warning: text", without a
// newline.
using LogSink = std::function<void(LogLevel level, std::string_view line)>;

// From now on, all log lines of this process go to `sink` instead of to standard error; an empty
// function restores standard error. Any thread may call, at any time. The thread that logs calls
// the sink, never two threads at once; that thread may be one of the library's own, or hold locks
// of the library. So the sink must neither throw, nor wait, nor call this library. STRETTO_LOG sets
// which lines there are.
void set_log_sink(LogSink sink);

}  // namespace stretto
