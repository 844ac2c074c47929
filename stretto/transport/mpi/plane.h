// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>

#include "stretto/transport/data_plane.h"
#include "stretto/transport/mpi/engine.h"
#include "stretto/transport/mpi/streams.h"

namespace stretto::transport::mpi {

// A plug-in that has been loaded. It stays so for good.
struct Plugin {
  MakeEngine make_engine = nullptr;
};

// Loads the plug-in: `path`, or libstretto_mpi.so from the folder of this library or program, or
// from where the system looks for libraries. Fails with a sentence that says what to do.
Result<Plugin> load_plugin(const std::string& path);

// The data plane by which MPI moves all messages. Called by all ranks together; MPI is started if
// nobody has started it, and then ended with the process. Where the program has started it, that
// must have been with MPI_THREAD_MULTIPLE. Up to `packets_max` packets are under way to a peer.
Result<std::unique_ptr<DataPlane>> make_plane(const Plugin& plugin, const EngineOptions& options,
                                              std::size_t packets_max = MpiStreams::kPacketsMax);

}  // namespace stretto::transport::mpi
