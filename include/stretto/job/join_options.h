// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "stretto/base/clock.h"
#include "stretto/base/environment.h"

namespace stretto {

inline constexpr Duration kNetworkTimeout = std::chrono::seconds(10);

// How to join a job. What is left empty comes from the launcher's environment.
struct JoinOptions {
  std::optional<int> rank = std::nullopt;
  std::optional<int> size = std::nullopt;
  // Where the ranks meet, the same on all of them:
  //   host:port        a store that a launcher hosts there, with the key in STRETTO_JOB_KEY
  //   tcp://host:port  a store that rank 0 hosts there until all have joined
  //   file:///path     a file that all ranks can reach and that is not there before; it is removed
  //                    when all have joined
  std::string rendezvous = {};
  // Bounds joining itself, until the communicator is there.
  Duration join_timeout = std::chrono::seconds(300);
  // Bounds every operation that does not say otherwise.
  Duration timeout = std::chrono::minutes(30);
  // How long nothing may come back from the host of another rank before that rank counts as lost:
  // the network to it, or its host, is down. (A process that is stopped is not: its host answers.)
  // At least 1 s; zero: as long as the kernel waits, about a quarter of an hour. Empty: what
  // STRETTO_NETWORK_TIMEOUT says, in seconds, or kNetworkTimeout.
  std::optional<Duration> network_timeout = std::nullopt;
  // An operation that has waited so long for other ranks says in the log for whom, and what those
  // do; again after twice as long, and so on. It goes on waiting. Zero: never. Empty: what
  // STRETTO_WARN_AFTER says, in seconds, or 60 s.
  std::optional<Duration> warn_after = std::nullopt;
  // Never use shared memory between the ranks of a host: tcp instead. For tests and measurements;
  // also STRETTO_TRANSPORT=tcp.
  bool disable_shared_memory = false;
  // What moves bytes: "auto" and "shm", shared memory inside a host and sockets between hosts;
  // "tcp", sockets only, also with ranks that have another of these; "mpi" and "ucx", which all
  // ranks must have, shared memory inside a host, and all messages by that library
  // (docs/engines.md). Empty: what STRETTO_TRANSPORT says, or "auto".
  std::string transport = {};
  // Whose collectives run, the same on all ranks: "stretto", its own schedules; "mpi", those of an
  // MPI library, as far as it does what is asked (docs/engines.md); "nccl" likewise, on memory of
  // GPUs; "cuda", its own there, too, where all ranks are on one host (docs/gpu.md). Empty: what
  // STRETTO_BACKEND says, or "stretto".
  std::string backend = {};
  // The GPU of this process, by its number among those that it sees; for the backends "nccl" and
  // "cuda". Empty: what STRETTO_DEVICE says; without that, the ranks of a host take the GPUs in
  // their order, by turns. Who makes several communicators with ranks of its own names that of the
  // first one, which is Communicator::device(): in another one the process may have another rank.
  std::optional<int> device = std::nullopt;
  // "tls": connections between hosts are encrypted with keys that both ends take from the job's
  // key, which must then be in STRETTO_JOB_KEY or in a file; "off". The same on all ranks; shared
  // memory stays as it is. Empty: what STRETTO_ENCRYPTION says, or "off".
  std::string encryption = {};
  // Null: the environment of this process.
  const Environment* environment = nullptr;
};

}  // namespace stretto
