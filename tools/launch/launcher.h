// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "tools/launch/options.h"

namespace stretto::launch {

// Runs this launcher's part of a job, from the start of the first rank until nothing of the ranks
// is left. If a rank failed, says on standard error which one failed first. Returns the exit status
// for this process: 0; that of the first rank that failed and was not started again (128 + signal);
// 124 when the time limit was reached; 127 or 126 if the program cannot be found or executed; 1 if
// the job could not be set up. Call it once, from a process with one thread.
int launch(const LaunchOptions& options);

// What a launcher runs on another host, for example by ssh. It starts the ranks that standard input
// orders, restarts them if told to, reports their events on standard error, between the lines that
// they write there, and passes on the signals that standard input names. When standard input ends,
// because the launcher, its host or the connection has ended, it kills the ranks. Returns the exit
// status. Call it once, from a process with one thread.
int serve_launcher();

}  // namespace stretto::launch
