// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <vector>

namespace stretto::tools {

// `stretto plan`: prints, proves and prices the schedule of a collective. `arguments` is what
// follows "plan". Returns the exit status: 0 for success and --help, 1 if the proof fails, 2 for a
// command line it does not understand.
int plan_command(const std::vector<std::string>& arguments);

}  // namespace stretto::tools
