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
  launcher_store,  // The launcher serves at host and port; who comes holds the job key.
  torch_store,     // PyTorch's: torchrun's agent serves at host and port, or it is `store`.
  rank_0_store,    // Rank 0 serves at host and port while the job starts.
  file,            // A file at `path`, while the job starts.
  given_store,     // `store`, which the program has brought.
};

// What this process needs to know to join its job, resolved from options and environment.
struct Job {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int size = 1;
  // What the launcher calls each rank; -1: it has not started it. Empty: the same, or nobody knows.
  std::vector<int> launcher_ranks = {};
  RendezvousKind rendezvous_kind = RendezvousKind::none;
  bootstrap::HostPort rendezvous = {};  // No host if they meet in a file.
  std::string rendezvous_path = {};
  std::shared_ptr<bootstrap::Store> store = nullptr;
  // The folder of the path is ours: to be made, for this user only.
  bool makes_folder = false;
  // Absent where no launcher made one: then whoever reads the store has what rank 0 makes.
  std::optional<bootstrap::JobKey> key = std::nullopt;
  // Goes before every key of a store that is not ours alone: keeps apart what uses it.
  std::string store_prefix = "stretto/";
  bool shared_memory = true;
  std::vector<std::string> networks = {};  // Interfaces or subnets; empty: towards the rendezvous.
  bootstrap::PortRange ports = {};         // For connections between ranks.
  int streams = 1;                         // Between two ranks of different hosts.
  std::string congestion_control = {};  // Of connections between ranks; empty: as the system says.
  std::string engine = {};              // "mpi" or "ucx", which moves all messages; or empty.
  std::string backend = "stretto";      // Whose collectives run.
  std::string plugin = {};              // Of one of them: see plugin_file().
  // By which this process takes its turn for a GPU of the host; nothing: by its rank.
  std::optional<int> local_rank = std::nullopt;
  bool encrypted = false;  // What goes between ranks that share no memory.
  Duration network_timeout = kNetworkTimeout;
  // What names the network for other libraries, "NCCL_SOCKET_IFNAME=eth1", if nothing does for us.
  std::string foreign_network = {};
  Sources sources = {};
};

// Who this process is: rank_and_size.h. Where the ranks meet, from the first that says so:
// JoinOptions::rendezvous and STRETTO_RENDEZVOUS (host:port, tcp://host:port, file:///path);
// torchrun's or anybody's MASTER_ADDR and MASTER_PORT; Slurm's list of hosts; Open MPI's name for
// the job, if all its ranks are on one host. The job key from STRETTO_JOB_KEY, the transport from
// JoinOptions::transport or STRETTO_TRANSPORT (auto, shm, tcp, mpi, ucx), whether it is encrypted
// from JoinOptions::encryption or STRETTO_ENCRYPTION (off, tls), whose collectives run from
// JoinOptions::backend or STRETTO_BACKEND (stretto, mpi, nccl, cuda), where to listen from
// STRETTO_NETWORK and STRETTO_PORTS, how to use sockets from STRETTO_STREAMS and
// STRETTO_CONGESTION_CONTROL, for how long the network may be silent from
// JoinOptions::network_timeout or STRETTO_NETWORK_TIMEOUT.
//
// Fails with invalid_argument, naming both sources, if an option and a variable, or two launchers'
// variables, contradict each other; or saying what is missing or makes no sense; or that `stretto
// run --restarts` has started this process again (STRETTO_RESTART_COUNT), as the others of its job
// do not join again. Reads nothing but options and environment.
Result<Job> resolve_job(const JoinOptions& options, const Environment& environment);

// The same for a program that knows its rank: only the job key and how to connect are looked up. A
// process that was started again is not refused.
Result<Job> given_job(std::shared_ptr<bootstrap::Store> store, Rank rank, int size,
                      const JoinOptions& options, const Environment& environment);

// The file of the plug-in for `name` ("mpi", "ucx"): where something else moves the messages,
// STRETTO_PLUGIN is that one's, and else the backend's. Empty: where it is found.
std::string plugin_file(const Job& job, std::string_view name);

// How many being connected to all ranks takes at most: of each its streams and what these are
// polled by, and, where it stands, the connection to rank 0's store.
std::size_t descriptors_for(const Job& job);

// Where the processes of an elastic job meet.
struct ElasticPlace {
  std::optional<bootstrap::HostPort> store = std::nullopt;  // None: this process is alone.
  bootstrap::JobKey key = {};
  int launcher_rank = -1;                           // -1: no launcher has started this process.
  std::optional<int> launched_size = std::nullopt;  // So many processes does the launcher start.
  // Its number among those on this host, which one that is started in its place has again.
  std::optional<int> local_rank = std::nullopt;
  // What must be the same in all processes: "backend stretto, transport auto, ...".
  std::string settings = {};
};

// From JoinOptions::rendezvous or STRETTO_RENDEZVOUS, STRETTO_JOB_KEY, and, where stretto run has
// started this process, from STRETTO_RANK, STRETTO_SIZE and STRETTO_LOCAL_RANK. Fails with
// invalid_argument where these make no sense, or where the ranks meet in a place that does not
// outlive their start.
Result<ElasticPlace> elastic_place(const JoinOptions& options, const Environment& environment);

}  // namespace stretto::job
