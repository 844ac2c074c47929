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

// What `stretto doctor` looks at. Each check measures or asks the system, and guesses nothing.
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
  std::string advice = {};  // What to do about it; empty if there is nothing to be done.
};
using Checks = std::vector<Check>;

inline Check warning(std::string name, std::string seen, std::string advice) {
  return {std::move(name), State::warning, std::move(seen), std::move(advice)};
}
inline Check problem(std::string name, std::string seen, std::string advice) {
  return {std::move(name), State::problem, std::move(seen), std::move(advice)};
}

// The first line of a file; empty if there is none.
inline std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Of all that a name has been resolved to, each once.
inline std::vector<std::string> numeric_addresses(const addrinfo& first) {
  std::vector<std::string> texts;
  for (const addrinfo* entry = &first; entry != nullptr; entry = entry->ai_next) {
    std::string text = bootstrap::numeric_host(*entry->ai_addr);
    if (std::ranges::count(texts, text) == 0) texts.push_back(std::move(text));
  }
  return texts;
}

// The job that a rank with these variables would join; without a launcher's, but with a place to
// meet, rank 0 of one of two ranks.
Result<job::Job> job_of(const Environment& environment);

// Cores, memory, descriptors (as many as the job takes), shared memory, copies between processes,
// pages, clock and load. Blocks for some milliseconds; starts a process.
Checks check_host(const Environment& environment);
// Names, interfaces, the address that ranks would have, ports and TCP. Blocks while a name is being
// looked up, for five seconds at most.
Checks check_network(const Environment& environment);
// STRETTO_ variables that nobody knows, values that make no sense, launchers that contradict each
// other. `set` are the entries of the environment, "NAME=value".
Checks check_variables(const Environment& environment, const std::vector<std::string>& set);
// NCCL, GPUs, our kernels and plug-ins, which stay loaded.
Checks check_libraries(const Environment& environment);
// Whether this host reaches that place, by which of its addresses, and who answers. Blocks for five
// seconds per address at most.
Checks check_way_to(const bootstrap::HostPort& place, const Environment& environment);

}  // namespace stretto::tools::doctor
