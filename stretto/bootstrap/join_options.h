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
  // "host:port" of the store where ranks meet.
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
