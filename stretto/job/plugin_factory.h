// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/communicator/scheduled_backend.h"
#include "stretto/transport/packets/plane.h"

namespace stretto::job {

// Makes the libraries of groups by a plug-in that has collectives, in a job of `size` ranks. The
// plug-in waits for all ranks of a group, on a thread of its own: messages move meanwhile, and a
// rank that dies or fails, or the deadline, ends the wait here, and the thread goes on by itself.
communicator::LibraryFactory plugin_factory(const transport::packets::Plugin& plugin, int size);

}  // namespace stretto::job
