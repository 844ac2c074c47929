// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/join_notes.h"
#include "stretto/bootstrap/link_provider.h"
#include "stretto/transport/endpoint.h"

namespace stretto::bootstrap {

struct MeshOptions {
  int rank = 0;
  int size = 1;
  JobKey key;
  // In order of preference, which is the same on all ranks; one may lack what others have.
  std::vector<std::shared_ptr<LinkProvider>> links;
  std::uint64_t configuration = 0;  // Hash of settings that must be equal on all ranks.
  // Makes what moves all messages, on all ranks together, once they are connected. Empty: the links
  // carry them.
  std::function<Result<std::unique_ptr<transport::DataPlane>>()> make_data_plane = {};
};

struct Mesh {
  std::unique_ptr<transport::Endpoint> endpoint;
  int local_ranks = 1;  // On this machine, this one included, however they are connected.
  int local_cores = 1;  // That they may use, all together.
  // Per rank: "node04 pid 8812", for messages.
  std::vector<std::string> names = {};
  // Per rank: a number of its host, which ranks share that could share memory.
  std::vector<std::int32_t> hosts = {};
};

// Connects this rank to every other by the first way that works for both, and logs which and why.
// Every connection is authenticated. What has been opened to be connected to is closed again
// afterwards, and is opened only where a rank needs it: on one machine that shares memory, no port.
//
// Blocks until all are connected. Fails with timeout, naming the ranks that never came and the
// store; with refused where a rank has another key, version or configuration; with what another
// rank has told in `notes` meanwhile.
Result<Mesh> connect_mesh(JoinNotes& notes, const MeshOptions& options);

}  // namespace stretto::bootstrap
