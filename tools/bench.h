// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <vector>

namespace stretto::tools {

// `stretto bench`: measures collectives, or explains how they run (--explain). `arguments` is what
// follows "bench". Starts its own ranks unless it is a rank itself. Returns the exit status: 0 for
// success and --help, 1 for a wrong result, 2 for a command line it does not understand, otherwise
// the job's.
int bench_command(const std::vector<std::string>& arguments);

}  // namespace stretto::tools
