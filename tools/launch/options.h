// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/bootstrap/handshake.h"

namespace stretto::launch {

// One launcher's part of a job: the ranks of this host.
struct LaunchOptions {
  // The program and its arguments; not empty.
  std::vector<std::string> command = {};
  int ranks_per_host = 1;
  // The hosts of the job, one launcher on each; empty: only this one. Launcher i starts ranks
  // [i * ranks_per_host, (i + 1) * ranks_per_host).
  std::vector<std::string> hosts = {};
  int host_index = 0;
  // "host:port" where launcher 0 serves the store. Empty: a free port of 127.0.0.1 for one host,
  // port kDefaultPort of the first host for several.
  std::string rendezvous = {};
  bootstrap::JobKey key = {};
  // Zero: no limit.
  Duration time_limit = Duration::zero();
  // After the first failure: how long the other ranks have to end by themselves, with an error of
  // their own that tells what they were waiting for.
  Duration settle_time = std::chrono::seconds(2);
  // How long after they have been told to end, by SIGTERM or by a signal that the launcher was sent
  // and has passed on, they get SIGKILL.
  Duration grace_time = std::chrono::seconds(5);
  // How long the store of launcher 0 outlives the ranks of its own host when all went well: ranks
  // of other hosts may still be reading where their peers are.
  Duration linger_time = std::chrono::seconds(30);
  bool prefix = true;
  bool json = false;

  int size() const { return ranks_per_host * (hosts.empty() ? 1 : static_cast<int>(hosts.size())); }
  int rank_of(int local_rank) const { return host_index * ranks_per_host + local_rank; }
};

inline constexpr int kDefaultPort = 29600;

}  // namespace stretto::launch
