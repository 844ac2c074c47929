// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/communicator/scheduled_backend.h"
#include "stretto/transport/packets/plane.h"

namespace stretto::job {

// Makes the libraries of groups from a plug-in that has collectives, in a job of `size` ranks.
// While a library waits for the group's other ranks, messages move; the wait ends if a rank dies or
// fails, or at the deadline. In a process's first library, the plug-in's own start (MPI_Init)
// cannot be interrupted.
communicator::LibraryFactory plugin_factory(const transport::packets::Plugin& plugin, int size);

}  // namespace stretto::job
