// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/communicator/communicator.h"
#include "stretto/job/join_options.h"

namespace stretto {

// Joins the job this process was launched for, by `stretto run`, torchrun, mpirun or srun, or by
// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without a launcher, a job of one rank, or the one
// that the options describe. docs/starting_a_job.md lists all ways; threads of one process
// need none of them (threads.h).
//
// Blocks until all ranks are connected. STRETTO_LOG=info prints each value with its source. Throws
// Refused (wrong job key, other version, a place where another job meets), Mismatch (ranks disagree
// on the size or the settings), Timeout (and who is missing), InvalidArgument (a conflict between
// two sources, or values that make no sense), SystemError (no thread can be started, say),
// OutOfMemory. A rank that fails or dies before all have joined ends the join of all: then the
// others throw PeerLost for a death, the same for Refused, Mismatch and Timeout, else Aborted, with
// its reason.
std::unique_ptr<Communicator> join(const JoinOptions& options = {});

}  // namespace stretto
