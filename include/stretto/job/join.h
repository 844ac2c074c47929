// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/communicator/communicator.h"
#include "stretto/job/join_options.h"

namespace stretto {

namespace bootstrap {
class Store;
}

// Joins the job that this process was launched for, by `stretto run`, torchrun, mpirun or srun, or
// by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without a launcher, joins the job that the
// options describe, or else a job of one rank. docs/starting_a_job.md lists all ways. Threads of
// one process need none of them (threads.h).
//
// Every rank is connected to every other one. If that could take more than half of the usual 1024
// descriptors (from 171 ranks on, or fewer with several connections to each), the call raises the
// soft limit (`ulimit -n`) of this process, and so of its later children, as far as the hard limit
// allows.
//
// Blocks until all ranks are connected. STRETTO_LOG=info prints every setting with its source,
// defaults included, and the addresses by which ranks are connected. Throws Refused (another job
// key, version or settings; a rendezvous that another job uses; another process that has joined as
// this rank; a file or folder that others may read), Mismatch (ranks disagree on the size), Timeout
// (names the missing ranks), InvalidArgument (a conflict between two sources, or values that make
// no sense), SystemError (no thread can be started, for example) and OutOfMemory. If a rank fails
// or dies before all have joined, join() fails on all: the others throw PeerLost for a death, the
// same error for Refused, Mismatch and Timeout, and otherwise Aborted with the rank's reason.
std::unique_ptr<Communicator> join(const JoinOptions& options = {});

// For programs that know their rank and size, and bring a store in which the ranks meet
// (stretto/bootstrap/store.h: a file, PyTorch's, or a class of their own that answers requests).
// All ranks pass the same store, or stores with the same content. Nothing else may use it: give
// each communicator its own part (prefix_store.h). It is used until the call returns. Whoever can
// read the store can join, unless the ranks have a STRETTO_JOB_KEY. Of the environment, that key
// and the variables that say how to run are read, but not those that say where. Leave rank, size
// and rendezvous out of the options. Blocks and throws as join() does.
std::unique_ptr<Communicator> make_communicator(std::shared_ptr<bootstrap::Store> store, Rank rank,
                                                int size, const JoinOptions& options = {});

}  // namespace stretto
