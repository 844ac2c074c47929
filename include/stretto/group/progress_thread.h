// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto {

// Which threads advance operations while their callers compute.
enum class ProgressThread {
  automatic,  // A progress thread if this host has more usable cores than ranks.
  always,
  never,  // No progress thread: only callers that wait or poll.
};

}  // namespace stretto
