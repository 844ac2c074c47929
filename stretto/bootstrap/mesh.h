// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/join_notes.h"
#include "stretto/transport/endpoint.h"

namespace stretto::bootstrap {

struct MeshOptions {
  int rank = 0;
  int size = 1;
  JobKey key;
  // Goes before every key in the store.
  std::string prefix;
  bool shared_memory = true;
  // How long the network to another rank may be silent; zero: as long as the kernel thinks fit.
  Duration network_timeout = Duration::zero();
  // The host and port of the store: the address from which this rank reaches them is the one it
  // listens on, if it must. Empty: the store is no server.
  std::string rendezvous_host;
  int rendezvous_port = 0;
  std::uint64_t configuration = 0;  // Hash of settings that must be equal on all ranks.
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

// Connects this rank to every other: over a Unix socket and shared memory where both succeed, over
// TCP elsewhere, and logs which and why. Every connection is authenticated. No port or socket name
// is left open afterwards; on one machine no TCP port is opened at all.
//
// Blocks until all are connected. Fails with timeout, naming the ranks that never came and the
// store; with refused where a rank has another key, version or configuration; with what another
// rank has told in `notes` meanwhile.
Result<Mesh> connect_mesh(JoinNotes& notes, const MeshOptions& options);

}  // namespace stretto::bootstrap
