// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <string_view>

namespace stretto {

enum class LogLevel { debug, info, warning, error, off };

// Takes a line of this library's log, "stretto [rank 3] warning: text" without its end.
using LogSink = std::function<void(LogLevel level, std::string_view line)>;

// From now on, all lines of this process go to `sink` instead of to standard error; an empty
// function puts that back. Any thread may call, at any time. The sink is called by whichever thread
// has something to say, one at a time, also by the library's own threads and while it holds locks:
// it must neither throw, nor wait, nor call this library. Which lines there are, STRETTO_LOG says.
void set_log_sink(LogSink sink);

}  // namespace stretto
