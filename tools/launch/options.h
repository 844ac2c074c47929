// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/bootstrap/handshake.h"

namespace stretto::launch {

// A host of a job, and how many of the job's ranks run there.
struct HostShare {
  std::string name = "127.0.0.1";
  int ranks = 1;
};

// One launcher's part of a job: the ranks of this host or, with a remote shell, of all hosts.
struct LaunchOptions {
  // The program and its arguments; not empty.
  std::vector<std::string> command = {};
  // The name of the program if it is no rank but starts the ranks: "mpirun". Empty: it is a rank.
  std::string starter = {};
  // The hosts of the job, in the order of their ranks; never empty.
  std::vector<HostShare> hosts = {{}};
  // Which of `hosts` this host is.
  int host_index = 0;
  // The words that run a command on another host, once the host's name and the command are
  // appended. Empty: this launcher starts the ranks of `host_index`, and each other host has a
  // launcher of its own.
  std::vector<std::string> remote_shell = {};
  // How long to retry a host that cannot be reached.
  Duration host_wait = Duration::zero();
  // "host:port" where launcher 0 serves the store. Empty: a free port of 127.0.0.1 if there is one
  // host, port kDefaultPort of the first host if there are several.
  std::string rendezvous = {};
  bootstrap::JobKey key = {};
  // Zero: no limit.
  Duration time_limit = Duration::zero();
  // How many restarts of failed ranks there may be, for all ranks of this launcher together.
  int restarts = 0;
  // How long the other ranks have, after the first failure, to end by themselves, with an error
  // that says what they were waiting for.
  Duration settle_time = std::chrono::seconds(2);
  // How long ranks have from being told to end, by SIGTERM or by a signal that the launcher was
  // sent and has passed on, until SIGKILL.
  Duration grace_time = std::chrono::seconds(5);
  bool prefix = true;
  bool json = false;

  int local_size() const { return hosts[static_cast<std::size_t>(host_index)].ranks; }
  int size() const { return ranks_before(static_cast<int>(hosts.size())); }
  int rank_of(int local_rank) const { return ranks_before(host_index) + local_rank; }
  // The number of ranks on the hosts before `host`.
  int ranks_before(int host) const {
    int ranks = 0;
    for (int i = 0; i < host; ++i) ranks += hosts[static_cast<std::size_t>(i)].ranks;
    return ranks;
  }
};

inline constexpr int kDefaultPort = 29600;

inline bool meets_at_any_port(const LaunchOptions& options) {
  return options.rendezvous.empty() && options.hosts.size() == 1;
}

}  // namespace stretto::launch
