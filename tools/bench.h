// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <vector>

namespace stretto::tools {

// `stretto bench`: `arguments` is what follows "bench". So far it explains the choice of
// algorithms; it measures nothing yet. Starts its own ranks unless it is a rank itself. Returns the
// exit status: 0 for success and --help, 2 for a command line it does not understand, otherwise
// the job's.
int bench_command(const std::vector<std::string>& arguments);

// "64 KiB": bytes as people write them. Powers of 1024 where they divide, else bytes.
std::string format_bytes(std::size_t bytes);

}  // namespace stretto::tools
