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

// How to join a job. Empty fields are taken from the launcher's environment.
struct JoinOptions {
  std::optional<int> rank = std::nullopt;
  std::optional<int> size = std::nullopt;
  // Where the ranks meet, the same on all of them:
  //   host:port        a store that a launcher hosts there, with the key in STRETTO_JOB_KEY
  //   tcp://host:port  a store that rank 0 hosts there until all have joined
  //   file:///path     a file that all ranks can reach and that does not exist yet; it is removed
  //                    when all have joined
  std::string rendezvous = {};
  // How long joining may take, until the communicator is there.
  Duration join_timeout = std::chrono::seconds(300);
  // The timeout of every operation that names none.
  Duration timeout = std::chrono::minutes(30);
  // A rank counts as lost after its host has not answered for this long: the host, or the network
  // to it, is down. (A process that is stopped is not lost: its host answers.) At least 1 s; zero:
  // as long as the kernel waits, about a quarter of an hour. Empty: STRETTO_NETWORK_TIMEOUT, in
  // seconds, or else kNetworkTimeout.
  std::optional<Duration> network_timeout = std::nullopt;
  // An operation that has waited this long for other ranks logs their numbers and what they do,
  // again after twice as long, and so on. It goes on waiting. Zero: never. Empty:
  // STRETTO_WARN_AFTER, in seconds, or else 60 s.
  std::optional<Duration> warn_after = std::nullopt;
  // Use tcp instead of shared memory between the ranks of a host. For tests and measurements; also
  // STRETTO_TRANSPORT=tcp.
  bool disable_shared_memory = false;
  // How bytes move: "auto" and "shm", shared memory inside a host and sockets between hosts; "tcp",
  // sockets only, also to ranks that have another of these three; "mpi" and "ucx", which all ranks
  // must have, shared memory inside a host, and all messages by that library (docs/engines.md).
  // Empty: STRETTO_TRANSPORT, or else "auto".
  std::string transport = {};
  // Which collectives run, the same on all ranks: "stretto", its own schedules; "mpi", those of an
  // MPI library, as far as it supports the operation (docs/engines.md); "nccl", likewise, on GPU
  // memory; "cuda", stretto's own, also on GPU memory, if all ranks are on one host (docs/gpu.md).
  // Empty: STRETTO_BACKEND, or else "stretto".
  std::string backend = {};
  // The GPU of this process, by its number among those that the process sees; for the backends
  // "nccl" and "cuda". Empty: STRETTO_DEVICE; without it, the ranks of a host take the GPUs
  // round-robin. A program that makes several communicators, in which it may have different ranks,
  // should name the GPU of the first one here (Communicator::device()).
  std::optional<int> device = std::nullopt;
  // "tls": connections between hosts are encrypted, with keys derived from the job's key, which
  // must then be in STRETTO_JOB_KEY or in a file. "off": they are not. The same on all ranks;
  // shared memory is not encrypted. Empty: STRETTO_ENCRYPTION, or else "off".
  std::string encryption = {};
  // Null: the environment of this process.
  const Environment* environment = nullptr;
};

}  // namespace stretto
