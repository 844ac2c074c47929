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

// Joins the job this process was launched for, by `stretto run`, torchrun, mpirun or srun, or by
// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without a launcher, a job of one rank, or the one
// that the options describe. docs/starting_a_job.md lists all ways; threads of one process
// need none of them (threads.h).
//
// A rank is connected to each other one. Where that could take more than half of the usual 1024
// descriptors (from 171 ranks on, or fewer with several connections to each), the call raises the
// soft limit (`ulimit -n`) of this process, and so of its later children, as far as the hard one
// lets it.
//
// Blocks until all ranks are connected. STRETTO_LOG=info prints each value with its source, those
// that hold by default, and by which addresses ranks are connected. Throws Refused (another job
// key, version or settings, a place where another job meets, another process that has come as this
// rank, a file or folder that others may read), Mismatch (ranks disagree on the size), Timeout (and
// who is missing), InvalidArgument (a conflict between two sources, or values that make no sense),
// SystemError (no thread can be started, say), OutOfMemory. A rank that fails or dies before all
// have joined ends the join of all: then the others throw PeerLost for a death, the same for
// Refused, Mismatch and Timeout, else Aborted, with its reason.
std::unique_ptr<Communicator> join(const JoinOptions& options = {});

// For programs that know which rank of how many they are, and bring a store in which the ranks meet
// (stretto/bootstrap/store.h: a file, PyTorch's, or a class of their own that answers requests).
// All ranks pass the same store, or one with the same content, and nobody else uses it: give each
// communicator a part of its own (prefix_store.h). It is used until the call returns. Whoever can
// read it can join, unless the ranks have a STRETTO_JOB_KEY; of the environment, that and variables
// that say how to run are read, not those that say where. Leave rank, size and rendezvous out of
// the options. Blocks and throws as join() does.
std::unique_ptr<Communicator> make_communicator(std::shared_ptr<bootstrap::Store> store, Rank rank,
                                                int size, const JoinOptions& options = {});

}  // namespace stretto
