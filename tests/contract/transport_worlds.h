// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/transport/endpoint.h"

namespace stretto::transport {

// The connected endpoints of ranks that are threads of this test.
struct World {
  RankVector<std::unique_ptr<Endpoint>> endpoints = {};
  // sockets[r][p]: a descriptor that rank r's link to p owns; empty or -1 where it has none. After
  // the entries of all peers, all sockets of rank r may follow.
  RankVector<RankVector<int>> sockets = {};

  Endpoint& operator[](int rank) { return *endpoints[rank]; }
  int size() const { return static_cast<int>(endpoints.size()); }
  // All ranks, as members of a group.
  std::vector<Rank> everybody() const {
    std::vector<Rank> ranks;
    for (int r = 0; r < size(); ++r) ranks.push_back(r);
    return ranks;
  }
  // Has the others see what they see when the process of `rank` is killed. Its endpoint must not be
  // used any more.
  void kill(int rank);
  void destroy(int rank) { endpoints[rank].reset(); }
};

struct WorldOptions {
  int ranks = 2;
  int socket_buffer_bytes = 0;  // Of TCP connections, each way; 0: the system's.
  // Of the connections of ranks that share no memory with anybody.
  Duration network_timeout = Duration::zero();
};

// One way to connect ranks. A new transport joins the suite by one more entry in world_kinds().
struct WorldKind {
  std::string name;
  World (*make)(const WorldOptions& options) = nullptr;
  std::string link = "tcp";  // Between ranks that share no memory.
  bool (*shares_memory)(int rank, int peer) = [](int, int) { return false; };
  bool is_mixed = false;  // Some ranks share memory, others not; 2 of it are like "shm".
  bool can_kill = true;   // Whether World::kill() works.
  // Whether no descriptor signals messages, so that a sleeping rank wakes every millisecond to
  // look.
  bool must_be_asked = false;

  // The name of the link between two different ranks.
  std::string link_name(int rank, int peer) const {
    return shares_memory(rank, peer) && link != "loopback" ? "shm" : link;
  }
};
std::ostream& operator<<(std::ostream& out, const WorldKind& kind);

const std::vector<WorldKind>& world_kinds();
// One of each set of kinds that a group cannot tell apart: a group sees only whether ranks share
// memory, and whether a plane of messages must be asked. The engines of other libraries are added
// where they are built.
std::vector<WorldKind> world_kinds_for_groups();
std::vector<WorldKind> world_kinds_where(bool (*fits)(const WorldKind& kind));
const WorldKind& kind_named(std::string_view name);

}  // namespace stretto::transport
