// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <vector>

#include "stretto/bootstrap/host_port.h"
#include "tools/launch/options.h"

namespace stretto::launch {

// What the variables of a rank depend on, besides the options.
struct RankSettings {
  int local_rank = 0;
  std::string rendezvous = {};  // "127.0.0.1:4242"
  std::string master = {};      // See master_place().
  int status_fd = -1;
  int usable_cores = 1;
  int restart = 0;  // Which restart of the job this is; 0: a first start.
};

// Returns the environment of a rank, as "NAME=value": `inherited`, and what a rank reads when it
// joins, in stretto's variables and in those of PyTorch. What another launcher has told this
// process about its own job (torchrun's variables) is left out. MASTER_ADDR and MASTER_PORT,
// OMP_NUM_THREADS (the rank's share of the cores) and PYTHONUNBUFFERED are set only if they are not
// set yet.
std::vector<std::string> rank_environment(const LaunchOptions& options,
                                          const RankSettings& settings,
                                          const std::vector<std::string>& inherited);

// Returns where rank 0 may host a PyTorch store, as "host:port": the port after the one where ranks
// meet or, if ranks may meet at any port, `free_port`. Empty: nowhere.
std::string master_place(const LaunchOptions& options, const bootstrap::HostPort& rendezvous,
                         int free_port);

// Returns the environment of this process, as "NAME=value".
std::vector<std::string> inherited_environment();

// Whether the entry "NAME=value" belongs to a host, or a session on it, and not to the job.
bool is_of_this_host(const std::string& variable);

}  // namespace stretto::launch
