// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The `stretto` program: finds the command and calls it.

#include <cerrno>
#include <cstdio>
#include <exception>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stretto/bootstrap/handshake.h"
#include "tools/commands.h"

namespace {

constexpr const char* kUsage =
    "stretto: data-parallel training that overlaps communication with computation\n"
    "\n"
    "Usage: stretto COMMAND [OPTIONS]\n"
    "\n"
    "Commands:\n"
    "  run          start the ranks of a job, here or by ssh on other hosts, and look after them\n"
    "  plan         print, prove and price the schedule of a collective\n"
    "  bench        measure collectives, or explain which algorithms run, and why\n"
    "  top          show the ranks that run on this host, and for whom they wait\n"
    "  doctor       look for what is wrong with this host, its network and a job's settings\n"
    "\n"
    "  --version    the release and the version of its protocol\n"
    "  --help       this text; stretto COMMAND --help says more about a command\n";

constexpr std::pair<const char*, int (*)(const std::vector<std::string>&)> kCommands[] = {
    {"run", stretto::tools::run_command},       {"plan", stretto::tools::plan_command},
    {"bench", stretto::tools::bench_command},   {"top", stretto::tools::top_command},
    {"doctor", stretto::tools::doctor_command},
};

int dispatch(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : arguments.front();
  for (const auto& [name, run] : kCommands) {
    if (command == name) return run({arguments.begin() + 1, arguments.end()});
  }
  if (command == "--version") {
    fmt::print("stretto {} (protocol {})\n", stretto::bootstrap::kBuild,
               stretto::bootstrap::kProtocolVersion);
    return 0;
  }
  if (command == "--help" || command == "-h") {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (!command.empty()) fmt::print(stderr, "stretto: there is no command \"{}\"\n\n", command);
  fmt::print(stderr, "{}", kUsage);
  return 2;
}

}  // namespace

int main(int argument_count, char** arguments) {
  try {
    const int status = dispatch({arguments + 1, arguments + argument_count});
    if (std::fflush(stdout) == 0) return status;
    throw std::system_error(errno, std::generic_category(), "standard output");
  } catch (const std::exception& failure) {
    fmt::print(stderr, "stretto: {}\n", failure.what());
    return 1;
  }
}
