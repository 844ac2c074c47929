// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto::launch {

// What a launcher runs on another host, by ssh, say: starts the ranks that standard input orders,
// tells on standard error what becomes of them, among what they write, and passes on the signals
// that standard input names. When standard input ends, as it does when the launcher, its host or
// the connection does, it kills the ranks. Returns the exit status. Call it once, from a process
// with one thread.
int serve_launcher();

}  // namespace stretto::launch
