// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/collective_library.h"
#include "stretto/transport/data_plane.h"
#include "stretto/transport/packets/engine.h"
#include "stretto/transport/packets/streams.h"

namespace stretto::transport::packets {

// A loaded plug-in. It is never unloaded.
struct Plugin {
  MakeEngine make_engine = nullptr;
  MakeLibrary make_library = nullptr;  // Null: it has no collectives.
};

// Loads the plug-in for `name` ("mpi", "ucx"): `path`, or libstretto_NAME.so from the folder of
// this library or program, or from where the system looks for libraries. Fails with a sentence that
// says what to do.
Result<Plugin> load_plugin(std::string_view name, const std::string& path);

// Makes the library's collectives for a group, all of whose ranks call this. The result may not be
// connected yet (CollectiveLibrary::is_connected).
Result<std::unique_ptr<CollectiveLibrary>> make_library(const Plugin& plugin,
                                                        const LibraryGroup& group);

// All ranks call this together. Starts an MPI if nobody has, and then ends it with the process. A
// program that has started MPI itself must have asked for MPI_THREAD_MULTIPLE.
Result<std::unique_ptr<Engine>> make_engine(const Plugin& plugin, const EngineOptions& options);

// The data plane by which an engine moves all messages. `addresses` are what Engine::address() says
// on each rank. Up to `packets_max` packets are under way to a peer.
Result<std::unique_ptr<DataPlane>> make_plane(std::unique_ptr<Engine> engine,
                                              const EngineOptions& options,
                                              const std::vector<std::string>& addresses,
                                              std::size_t packets_max = PacketStreams::kPacketsMax);

}  // namespace stretto::transport::packets
