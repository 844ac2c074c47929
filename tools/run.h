// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <vector>

namespace stretto::tools {

// What follows the first "--" of a command line, and what is before it.
struct SplitArguments {
  std::vector<std::string> options;
  std::vector<std::string> program;
};
SplitArguments split_arguments(const std::vector<std::string>& arguments);

// `stretto run`: `arguments` is what follows "run". Returns the exit status: 0 for success and
// --help, 2 for a command line it does not understand, otherwise launch()'s.
int run_command(const std::vector<std::string>& arguments);

}  // namespace stretto::tools
