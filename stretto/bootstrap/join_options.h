// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "stretto/base/clock.h"
#include "stretto/base/environment.h"

namespace stretto {

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
  // Bounds joining itself.
  Duration join_timeout = std::chrono::seconds(300);
  // Bounds every operation that does not say otherwise.
  Duration timeout = std::chrono::minutes(30);
  // Never use shared memory between the ranks of a host: tcp instead. For tests and measurements;
  // also STRETTO_TRANSPORT=tcp.
  bool disable_shared_memory = false;
  // Null: the environment of this process.
  const Environment* environment = nullptr;
};

}  // namespace stretto
