// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/communicator/scheduled_backend.h"
#include "stretto/transport/packets/plane.h"

namespace stretto::job {

// Makes the libraries of groups by a plug-in that has collectives, in a job of `size` ranks. While
// a library waits for those of the group's other ranks, messages move, and a rank that dies or
// fails, or the deadline, ends the wait. Nothing but its end ends the wait for the plug-in's own
// start (MPI_Init), in a process' first library.
communicator::LibraryFactory plugin_factory(const transport::packets::Plugin& plugin, int size);

}  // namespace stretto::job
