// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/transport/transport.h"

namespace stretto::transport {

// A request with its own completion queue, for tests that ask how one request has ended.
struct TrackedRequest : Request {
  TrackedRequest() { completions = &ended; }
  TrackedRequest(const TrackedRequest&) = delete;

  bool done() const { return !ended.empty(); }
  // Returns ok while the request is not done.
  Status status() const { return done() ? ended.front().status : Status(); }
  // Call it before posting the request again.
  void reset() {
    while (!ended.empty()) ended.pop();
  }

  CompletionQueue ended;
};

}  // namespace stretto::transport
