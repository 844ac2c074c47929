// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/transport/transport.h"

namespace stretto::transport {

// A request with a completion queue of its own, for tests that ask one request how it has ended.
struct TrackedRequest : Request {
  TrackedRequest() { completions = &ended; }
  TrackedRequest(const TrackedRequest&) = delete;

  bool done() const { return !ended.empty(); }
  // Ok while it is not done.
  Status status() const { return done() ? ended.front().status : Status(); }
  // To be called before it is posted again.
  void reset() {
    while (!ended.empty()) ended.pop();
  }

  CompletionQueue ended;
};

}  // namespace stretto::transport
