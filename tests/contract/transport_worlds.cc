// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/contract/transport_worlds.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <iterator>

#include "stretto/base/rank_vector.h"
#include "stretto/transport/loopback/world.h"
#include "stretto/transport/packets/plane.h"
#include "stretto/transport/shm/host.h"
#include "stretto/transport/tcp/striped_link.h"
#include "tests/support/connect_pairs.h"
#include "tests/support/memory_engine.h"
#include "tests/support/mpi_files.h"
#include "tests/support/on_threads.h"
#include "tests/support/socket_pairs.h"
#include "tests/support/tls_pairs.h"

namespace stretto::transport {
namespace {

World make_loopback(const WorldOptions& options) {
  return {.endpoints = loopback::make_world({.ranks = options.ranks}).or_throw()};
}

World make_loopback_without_memory(const WorldOptions& options) {
  return {.endpoints =
              loopback::make_world({.ranks = options.ranks, .shared_memory = false}).or_throw()};
}

using LocalPairs = bool (*)(int rank, int peer);

// Makes a connection of two ranks that share no memory.
using StreamPair = std::pair<std::unique_ptr<tcp::ByteStream>, std::unique_ptr<tcp::ByteStream>>;
using Connect = StreamPair (*)(int rank, int peer, int buffer_bytes);

StreamPair connect_plainly(int, int, int buffer_bytes) {
  auto [mine, theirs] = testing::make_tcp_pair(buffer_bytes);
  return {std::make_unique<tcp::SocketStream>(std::move(mine)),
          std::make_unique<tcp::SocketStream>(std::move(theirs))};
}

// If a socket cannot hold a whole record, the record comes in parts, none of which can be read
// alone, at the pace of the kernel's timers.
StreamPair connect_by_tls(int rank, int peer, int buffer_bytes) {
  constexpr int kRecord = 16 * 1024;
  const int enough = buffer_bytes == 0 ? 0 : std::max(buffer_bytes, 2 * kRecord);
  return testing::make_tls_pair(testing::make_tcp_pair(enough), rank, peer);
}

// Ranks without links. Each has room for a socket to every other rank.
World without_links(int ranks) {
  const std::vector<int> none(static_cast<std::size_t>(ranks), -1);
  return {.sockets = RankVector<RankVector<int>>(ranks, none)};
}

// Pairs share memory where `local` says so; the others have a connection.
World make_by_pairs(const WorldOptions& options, LocalPairs local) {
  World world = without_links(options.ranks);
  auto sockets = testing::connect_pairs(options.ranks, [&](int rank, int peer) {
    auto pair = local(rank, peer) ? testing::make_unix_pair(SOCK_STREAM)
                                  : testing::make_tcp_pair(options.socket_buffer_bytes);
    world.sockets[rank][peer] = pair.first.get();
    world.sockets[peer][rank] = pair.second.get();
    return pair;
  });
  world.endpoints = RankVector<std::unique_ptr<Endpoint>>(options.ranks);
  // Attaching waits for the other ranks.
  on_threads(options.ranks, [&](int r) {
    RankVector<FileDescriptor> of_host(options.ranks);
    for (int p = 0; p < options.ranks; ++p) {
      if (local(r, p)) of_host[p] = std::move(sockets[r][p]);
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds(10));
    Endpoint::Parts parts = shm::attach(r, std::move(of_host), deadline).or_throw();
    for (std::size_t p = 0; p < parts.links.size(); ++p) {
      if (!sockets[r][p].valid()) continue;
      parts.links[p] = std::make_unique<tcp::TcpLink>(
          std::make_unique<tcp::SocketStream>(std::move(sockets[r][p])));
    }
    world.endpoints[r] = Endpoint::create(std::move(parts)).or_throw();
  });
  return world;
}

using Planes = std::vector<std::unique_ptr<DataPlane>>;

// Every pair has `stripes` connections. Messages travel on them, or on `planes`.
World make_connected(const WorldOptions& options, Connect connect, int stripes = 1,
                     Planes planes = {}) {
  World world = without_links(options.ranks);
  using Stripes = std::vector<std::unique_ptr<tcp::TcpLink>>;
  const auto open = [&](int rank, int peer, std::unique_ptr<tcp::ByteStream> stream) {
    world.sockets[rank][peer] = stream->socket();
    world.sockets[rank].push_back(stream->socket());
    return std::make_unique<tcp::TcpLink>(std::move(stream), options.network_timeout);
  };
  auto links = testing::connect_pairs(options.ranks, [&](int rank, int peer) {
    std::pair<Stripes, Stripes> ends;
    for (int stripe = 0; stripe < stripes; ++stripe) {
      StreamPair streams = connect(rank, peer, options.socket_buffer_bytes);
      ends.first.push_back(open(rank, peer, std::move(streams.first)));
      ends.second.push_back(open(peer, rank, std::move(streams.second)));
    }
    return ends;
  });
  for (int r = 0; r < options.ranks; ++r) {
    Endpoint::Parts parts{.rank = r};
    for (Stripes& to_peer : links[r]) {
      parts.links.push_back(nullptr);
      if (to_peer.size() == 1) {
        parts.links.back() = std::move(to_peer.front());
      } else if (to_peer.size() > 1) {
        parts.links.back() = tcp::StripedLink::create(std::move(to_peer)).or_throw();
      }
    }
    if (!planes.empty()) parts.data_plane = std::move(planes[r]);
    world.endpoints.push_back(Endpoint::create(std::move(parts)).or_throw());
  }
  return world;
}

std::string plugin_of(const std::string& engine) {
  const std::string name = "libstretto_" + engine + ".so";
  return engine == "mpi" ? testing::mpi_file(STRETTO_BIN_DIR, name) : STRETTO_BIN_DIR "/" + name;
}

// Makes the engines known to each other, as a first message would: tests count what arrives at
// once.
void introduce(RankVector<std::unique_ptr<packets::Engine>>& engines,
               const std::vector<std::string>& addresses) {
  std::vector<const char*> texts;
  for (const std::string& address : addresses) texts.push_back(address.c_str());
  for (const auto& engine : engines) engine->connect(texts.data());
  const auto ranks = static_cast<int>(engines.size());
  const std::byte hello{};
  std::byte heard{};
  std::vector<std::pair<packets::Engine*, int>> begun;
  for (int a = 0; a < ranks; ++a) {
    for (int b = 0; b < ranks; ++b) {
      packets::Engine* engine = engines[a].get();
      if (a != b) begun.emplace_back(engine, engine->send(b, &hello, 1));
    }
  }
  for (int left = ranks * (ranks - 1); left > 0 || !begun.empty();) {
    for (const auto& engine : engines) {
      engine->progress();
      int peer = 0;
      std::size_t count = 0;
      if (!engine->probe(peer, count)) continue;
      begun.emplace_back(engine.get(), engine->receive(&heard));
      --left;
    }
    std::erase_if(begun, [](const auto& item) { return item.first->has_ended(item.second); });
  }
}

using MakeEngineOf = std::function<std::unique_ptr<packets::Engine>(const packets::EngineOptions&)>;

World make_by_engines(const WorldOptions& options, const MakeEngineOf& make) {
  const bool is_narrow = options.socket_buffer_bytes > 0;
  const std::size_t packets_max = is_narrow ? 2 : packets::PacketStreams::kPacketsMax;
  RankVector<std::unique_ptr<packets::Engine>> engines;
  std::vector<std::string> addresses;
  const auto of_rank = [&](int r) {
    return packets::EngineOptions{.rank = r, .size = options.ranks, .in_one_process = true};
  };
  for (int r = 0; r < options.ranks; ++r) {
    engines.push_back(make(of_rank(r)));
    addresses.push_back(engines.back()->address());
  }
  introduce(engines, addresses);
  Planes planes;
  for (int r = 0; r < options.ranks; ++r) {
    planes.push_back(
        packets::make_plane(std::move(engines[r]), of_rank(r), addresses, packets_max).or_throw());
  }
  return make_connected(options, connect_plainly, 1, std::move(planes));
}

World make_by_plugin(const char* name, const WorldOptions& options) {
  // Open MPI shall start no daemon for a process that was not started by mpirun. All such processes
  // would make and remove the same folders, and one that ends could keep another from starting.
  ::setenv("OMPI_MCA_ess_singleton_isolated", "1", /*replace=*/0);
  ::setenv("OMPI_MCA_orte_create_session_dirs", "0", /*replace=*/0);
  const packets::Plugin plugin = packets::load_plugin(name, plugin_of(name)).or_throw();
  return make_by_engines(options, [&](const packets::EngineOptions& of_rank) {
    return packets::make_engine(plugin, of_rank).or_throw();
  });
}

World make_in_memory(const WorldOptions& options) {
  const auto wire = std::make_shared<testing::MemoryEngine::Wire>(options.ranks);
  return make_by_engines(options, [&](const packets::EngineOptions& of_rank) {
    return std::make_unique<testing::MemoryEngine>(wire, of_rank.rank);
  });
}

bool always(int, int) { return true; }
// Hosts of two ranks each.
bool same_host(int rank, int peer) { return rank / 2 == peer / 2; }

}  // namespace

void World::kill(int rank) {
  for (const int socket : sockets[rank]) {
    if (socket >= 0) ::shutdown(socket, SHUT_RDWR);
  }
}

std::ostream& operator<<(std::ostream& out, const WorldKind& kind) { return out << kind.name; }

namespace {

std::vector<WorldKind> find_world_kinds() {
  using Options = WorldOptions;
  std::vector<WorldKind> kinds = {
      {.name = "loopback",
       .make = make_loopback,
       .link = "loopback",
       .shares_memory = always,
       .can_kill = false},
      {.name = "loopback_without_memory",
       .make = make_loopback_without_memory,
       .link = "loopback",
       .can_kill = false},
      {.name = "shm",
       .make = [](const Options& options) { return make_by_pairs(options, always); },
       .shares_memory = always},
      {.name = "mixed",
       .make = [](const Options& options) { return make_by_pairs(options, same_host); },
       .shares_memory = same_host,
       .is_mixed = true},
      {.name = "stream_plane", .make = make_in_memory, .must_be_asked = true},
      {.name = "tcp",
       .make = [](const Options& options) { return make_connected(options, connect_plainly); }},
      {.name = "tcp_striped",
       .make = [](const Options& options) { return make_connected(options, connect_plainly, 3); },
       .link = "tcp by 3 connections"},
      {.name = "tls",
       .make = [](const Options& options) { return make_connected(options, connect_by_tls); },
       .link = "tcp with TLS"},
      {.name = "tls_striped",
       .make = [](const Options& options) { return make_connected(options, connect_by_tls, 3); },
       .link = "tcp with TLS by 3 connections"},
  };
  // An engine is there if CMake has found its library. A chosen MPI has one, or its tests shall
  // fail.
  const auto add_engine = [&](const char* name, World (*make)(const WorldOptions&)) {
    if (::access(plugin_of(name).c_str(), F_OK) == 0 ||
        (std::string_view(name) == "mpi" && testing::has_chosen_mpi())) {
      kinds.push_back({.name = name, .make = make, .must_be_asked = true});
    }
  };
  add_engine("mpi", [](const Options& options) { return make_by_plugin("mpi", options); });
  add_engine("ucx", [](const Options& options) { return make_by_plugin("ucx", options); });
  return kinds;
}

}  // namespace

const std::vector<WorldKind>& world_kinds() {
  static const std::vector<WorldKind> kinds = find_world_kinds();
  return kinds;
}

std::vector<WorldKind> world_kinds_for_groups() {
  std::vector<WorldKind> kinds = world_kinds();
  std::erase_if(kinds, [](const WorldKind& kind) {
    constexpr std::array kLikeTcp = {"loopback_without_memory", "tcp_striped", "tls",
                                     "tls_striped"};
    return std::ranges::find(kLikeTcp, kind.name) != kLikeTcp.end();
  });
  return kinds;
}

std::vector<WorldKind> world_kinds_where(bool (*fits)(const WorldKind& kind)) {
  std::vector<WorldKind> kinds;
  std::ranges::copy_if(world_kinds(), std::back_inserter(kinds), fits);
  return kinds;
}

const WorldKind& kind_named(std::string_view name) {
  return *std::ranges::find(world_kinds(), name, &WorldKind::name);
}

}  // namespace stretto::transport
