// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "stretto/base/id.h"
#include "stretto/base/status.h"
#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store.h"
#include "stretto/job/join_options.h"
#include "stretto/job/rank_and_size.h"
#include "stretto/job/sourced.h"

namespace stretto::job {

// What kind of store the ranks meet in.
enum class RendezvousKind {
  none,            // A job of one rank meets nobody.
  launcher_store,  // The launcher serves it at host and port, for clients that hold the job key.
  torch_store,   // One of PyTorch's: torchrun's agent serves it at host and port, or it is `store`.
  rank_0_store,  // Rank 0 serves it at host and port while the job starts.
  file,          // A file at `path`, while the job starts.
  given_store,   // The program's own: `store`.
};

// What this process needs to know to join its job, resolved from options and environment.
struct Job {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int size = 1;
  // The launcher's number of each rank; -1: it has not started that rank. Empty: the numbers are
  // the same, or unknown.
  std::vector<int> launcher_ranks = {};
  RendezvousKind rendezvous_kind = RendezvousKind::none;
  bootstrap::HostPort rendezvous = {};  // No host if they meet in a file.
  std::string rendezvous_path = {};
  std::shared_ptr<bootstrap::Store> store = nullptr;
  // The folder of `rendezvous_path` is to be made, for this user only.
  bool makes_folder = false;
  // Empty if no launcher has made one: rank 0 makes the key then, for whoever can read the store.
  std::optional<bootstrap::JobKey> key = std::nullopt;
  // Begins every key in a store that others use, too, so that keys do not collide.
  std::string store_prefix = "stretto/";
  bool shared_memory = true;
  std::vector<std::string> networks = {};  // Interfaces or subnets; empty: towards the rendezvous.
  bootstrap::PortRange ports = {};         // For connections between ranks.
  int streams = 1;                         // Between two ranks of different hosts.
  std::string congestion_control = {};     // Of connections between ranks; empty: the system's.
  std::string engine = {};                 // "mpi" or "ucx", which moves all messages; or empty.
  std::string backend = "stretto";         // Runs the collectives.
  std::string plugin = {};                 // File of a plug-in: see plugin_file().
  // This process's number for taking a GPU of the host by turns; empty: as the job counts its
  // ranks.
  std::optional<int> local_rank = std::nullopt;
  bool encrypted = false;  // Between ranks that share no memory.
  Duration network_timeout = kNetworkTimeout;
  // A variable that names the network for other libraries, as "NCCL_SOCKET_IFNAME=eth1", if
  // STRETTO_NETWORK is not set.
  std::string foreign_network = {};
  // Why the ranks cannot be connected as the options or variables say, if they make no sense.
  // join() fails with it once it has told the other ranks, which have to be found first.
  Status mistake = {};
  Sources sources = {};
};

// Resolves the rank and the size as rank_and_size.h says. The first of these that is given says
// where the ranks meet: JoinOptions::rendezvous or STRETTO_RENDEZVOUS (host:port, tcp://host:port,
// file:///path); MASTER_ADDR and MASTER_PORT, of torchrun or others; Slurm's list of hosts; Open
// MPI's name for the job, if all its ranks are on one host. Further sources:
// - job key: STRETTO_JOB_KEY
// - transport: JoinOptions::transport or STRETTO_TRANSPORT (auto, shm, tcp, mpi, ucx)
// - encryption: JoinOptions::encryption or STRETTO_ENCRYPTION (off, tls)
// - backend of collectives: JoinOptions::backend or STRETTO_BACKEND (stretto, mpi, nccl, cuda)
// - where to listen: STRETTO_NETWORK and STRETTO_PORTS
// - use of sockets: STRETTO_STREAMS and STRETTO_CONGESTION_CONTROL
// - how long the network may be silent: JoinOptions::network_timeout or STRETTO_NETWORK_TIMEOUT
//
// Fails with invalid_argument, naming both sources, if an option and a variable, or two launchers'
// variables, contradict each other; also if something is missing or makes no sense, or if `stretto
// run --restarts` has started this process again (STRETTO_RESTART_COUNT): the other ranks of its
// job do not join again. A mistake in how to connect (transport, backend, encryption, networks,
// ports, sockets, silence of the network) is no failure, but in Job::mistake. Reads only options
// and environment.
Result<Job> resolve_job(const JoinOptions& options, const Environment& environment);

// The same for a program that knows its rank and brings `store`: only the job key and how to
// connect are looked up. A restarted process is not refused.
Result<Job> given_job(std::shared_ptr<bootstrap::Store> store, Rank rank, int size,
                      const JoinOptions& options, const Environment& environment);

// The file of the plug-in for `name` ("mpi", "ucx"). STRETTO_PLUGIN names the file of the engine
// that moves the messages, or, without an engine, that of the backend. Empty: search for it.
std::string plugin_file(const Job& job, std::string_view name);

// The most file descriptors that connections to all ranks take: the streams to each rank and the
// descriptors to poll them, and the connection to rank 0's store, if there is one.
std::size_t descriptors_for(const Job& job);

// Where the processes of an elastic job meet.
struct ElasticPlace {
  std::optional<bootstrap::HostPort> store = std::nullopt;  // Empty: this process is alone.
  bootstrap::JobKey key = {};
  int launcher_rank = -1;  // -1: no launcher has started this process.
  // How many processes the launcher starts.
  std::optional<int> launched_size = std::nullopt;
  // Its number among those on this host; a process that replaces it has the same.
  std::optional<int> local_rank = std::nullopt;
  // What must be the same in all processes, as readable text: "backend stretto, ...".
  std::string settings = {};
};

// Resolved from JoinOptions::rendezvous or STRETTO_RENDEZVOUS, STRETTO_JOB_KEY, and, if stretto run
// has started this process, from STRETTO_RANK, STRETTO_SIZE and STRETTO_LOCAL_RANK. Fails with
// invalid_argument if these make no sense, or if the ranks meet in a place that does not outlive
// their start.
Result<ElasticPlace> elastic_place(const JoinOptions& options, const Environment& environment);

}  // namespace stretto::job
