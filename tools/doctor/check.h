// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <netdb.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/environment.h"
#include "stretto/base/status.h"
#include "stretto/bootstrap/host_port.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/job/job.h"

// The checks of `stretto doctor`. Each one measures or asks the system, and guesses nothing.
namespace stretto::tools::doctor {

enum class State {
  ok,
  warning,  // A job may run, but slower, or not on several hosts.
  problem,  // What the user has asked for cannot work.
};

struct Check {
  std::string name;
  State state = State::ok;
  std::string seen;
  std::string advice = {};  // What to do about it; empty if nothing is to be done.
};
using Checks = std::vector<Check>;

inline Check warning(std::string name, std::string seen, std::string advice) {
  return {std::move(name), State::warning, std::move(seen), std::move(advice)};
}
inline Check problem(std::string name, std::string seen, std::string advice) {
  return {std::move(name), State::problem, std::move(seen), std::move(advice)};
}

// Returns the first line of a file; empty if there is none.
inline std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns the numeric addresses that a name was resolved to, each once.
inline std::vector<std::string> numeric_addresses(const addrinfo& first) {
  std::vector<std::string> texts;
  for (const addrinfo* entry = &first; entry != nullptr; entry = entry->ai_next) {
    std::string text = bootstrap::numeric_host(*entry->ai_addr);
    if (std::ranges::count(texts, text) == 0) texts.push_back(std::move(text));
  }
  return texts;
}

// Returns the job that a rank with these variables would join. If no launcher has set them, but a
// meeting place is set, this is rank 0 of two ranks.
Result<job::Job> job_of(const Environment& environment);

// Checks cores, memory, descriptors (as many as the job needs), shared memory, copies between
// processes, pages, clock and load. Blocks for some milliseconds; starts a process.
Checks check_host(const Environment& environment);
// Checks names, interfaces, the address that ranks would use, ports and TCP. Blocks while it looks
// up a name, for at most five seconds.
Checks check_network(const Environment& environment);
// Checks for unknown STRETTO_ variables, invalid values, and launchers that contradict each other.
// `set` are the entries of the environment, "NAME=value".
Checks check_variables(const Environment& environment, const std::vector<std::string>& set);
// Checks NCCL, GPUs, stretto's CUDA kernels, and plug-ins. The libraries stay loaded.
Checks check_libraries(const Environment& environment);
// Checks whether this host reaches `place`, by which of its addresses, and who answers. Blocks for
// at most five seconds per address.
Checks check_way_to(const bootstrap::HostPort& place, const Environment& environment);

}  // namespace stretto::tools::doctor
