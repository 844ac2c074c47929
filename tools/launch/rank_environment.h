// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <vector>

#include "tools/launch/options.h"

namespace stretto::launch {

// What the variables of a rank depend on, beyond the options.
struct RankSettings {
  int local_rank = 0;
  std::string rendezvous = {};  // "127.0.0.1:4242"
  int status_fd = -1;
  int usable_cores = 1;
};

// The environment of a rank, as "NAME=value": `inherited`, and what a rank reads when it joins.
// Left out are the variables of another launcher for the process that this launcher is (RANK,
// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE): they would contradict the rank's own.
// OMP_NUM_THREADS (the rank's share of the cores) and PYTHONUNBUFFERED are set if they are not set
// yet.
std::vector<std::string> rank_environment(const LaunchOptions& options,
                                          const RankSettings& settings,
                                          const std::vector<std::string>& inherited);

// The environment of this process, in the same form.
std::vector<std::string> inherited_environment();

// Whether such an entry belongs to a host, or a session on it, and not to the job.
bool is_of_this_host(const std::string& variable);

}  // namespace stretto::launch
