// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <string>

#include "stretto/base/status.h"
#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/join_options.h"

namespace stretto::bootstrap {

// Which launcher started this process, in order of precedence.
enum class Launcher { options, stretto_run, torchrun, none };

// Everything about this process's place in its job, resolved from options and environment.
struct Job {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int size = 1;
  std::string rendezvous_host;  // Empty if size == 1.
  int rendezvous_port = 0;
  std::optional<JobKey>
      key;  // Absent under torchrun: then the store hands out one that rank 0 makes.
  // Goes before every key of the store: keeps apart what uses one store, and the attempts of a job
  // that torchrun starts again.
  std::string store_prefix = "stretto/";
  bool shared_memory = true;
  // "rank 3 from STRETTO_RANK": a line for each value, for the log.
  std::string sources;
};

// Reads STRETTO_RANK, STRETTO_SIZE, STRETTO_RENDEZVOUS, STRETTO_JOB_KEY, STRETTO_TRANSPORT (auto,
// shm, tcp) or torchrun's RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Fails with invalid_argument,
// naming both sources, if an option and a variable, or two launchers' variables, contradict each
// other, if a value is missing or is no number, or if rank is not below size. The rendezvous of
// `stretto run` and torchrun's MASTER_ADDR are stores of different kinds and may differ.
Result<Job> resolve_job(const JoinOptions& options, const Environment& environment);

}  // namespace stretto::bootstrap
