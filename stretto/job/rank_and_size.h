// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include "stretto/base/environment.h"
#include "stretto/job/join_options.h"
#include "stretto/job/sourced.h"

namespace stretto::job {

// What told this process its rank.
enum class Launcher {
  none,         // Nobody: a job of one rank.
  options,      // The program itself.
  stretto_run,  // STRETTO_RANK, STRETTO_SIZE
  torchrun,     // RANK, WORLD_SIZE and a store that torchrun's agent hosts
  variables,    // RANK, WORLD_SIZE, set by hand, by a script or by another launcher
  mpi,          // OMPI_COMM_WORLD_RANK and _SIZE, or PMI_RANK and PMI_SIZE
  slurm,        // SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS
};

struct RankAndSize {
  Launcher launcher = Launcher::none;
  MaybeSourced<int> rank = std::nullopt;
  MaybeSourced<int> size = std::nullopt;

  bool empty() const { return !rank && !size; }
};

// The rank of this process, and the number of ranks. Fails with invalid_argument, naming both
// sources, if two sources contradict each other; if a value is missing or not a number, or if the
// rank is not below the size.
//
// Launchers may be nested: Slurm counts only if no other launcher says anything, and an MPI job of
// one process does not contradict a launcher that was started inside it.
Result<RankAndSize> resolve_rank_and_size(const JoinOptions& options,
                                          const Environment& environment);

}  // namespace stretto::job
