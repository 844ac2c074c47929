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
  // In order of preference, which is the same on all ranks. A rank may lack ways that others have,
  // but not the last one.
  std::vector<std::shared_ptr<LinkProvider>> links;
  std::uint64_t configuration = 0;  // Hash of settings that must be equal on all ranks.
  // Makes a data plane that moves all messages; called on all ranks together once they are
  // connected. Empty: the links move the messages.
  std::function<Result<std::unique_ptr<transport::DataPlane>>()> make_data_plane = {};
};

struct Mesh {
  std::unique_ptr<transport::Endpoint> endpoint;
  int local_ranks = 1;  // Ranks on this machine, this one included, however they are connected.
  int local_cores = 1;  // Cores that all of them together may use.
  // Per rank, for error messages: "node04 pid 8812".
  std::vector<std::string> names = {};
  // Per rank: the number of its host. Ranks that could share memory have the same number.
  std::vector<std::int32_t> hosts = {};
};

// Connects this rank to every other by the first way that works for both, and logs which way and
// why. Every connection is authenticated. Listening sockets are opened only if a rank needs them,
// and closed afterwards: ranks that all share memory open no port.
//
// Blocks until all are connected. Fails with timeout, naming the ranks that never came and the
// store; with refused if a rank has another key, version or configuration; and with the failure
// that another rank has written in `notes`.
Result<Mesh> connect_mesh(JoinNotes& notes, const MeshOptions& options);

}  // namespace stretto::bootstrap
