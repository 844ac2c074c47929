// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "tools/launch/options.h"

namespace stretto::launch {

// Runs this launcher's part of a job, from the first rank's start until nothing of it is left, and
// says on standard error who failed first, if somebody did. Returns the exit status for this
// process: 0; that of the first rank to fail and not to be started again (128 + signal); 124 when
// the time limit was reached; 127 or 126 if the program cannot be found or executed; 1 if the job
// could not be set up. Call it once, from a process with one thread.
int launch(const LaunchOptions& options);

// What a launcher runs on another host, by ssh, say: starts the ranks that standard input orders,
// again if it says so, tells on standard error what becomes of them, among what they write, and
// passes on the signals that standard input names. When standard input ends, as it does when the
// launcher, its host or the connection does, it kills the ranks. Returns the exit status. Call it
// once, from a process with one thread.
int serve_launcher();

}  // namespace stretto::launch
