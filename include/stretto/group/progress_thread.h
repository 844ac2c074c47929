// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto {

// Who moves operations along while their caller computes.
enum class ProgressThread {
  automatic,  // A thread of its own if this host has more usable cores than ranks.
  always,
  never,  // Only callers that wait or poll.
};

}  // namespace stretto
