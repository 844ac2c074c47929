// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/bootstrap/handshake.h"

namespace stretto::bootstrap {

// A connection whose other end has proven that it holds the job key.
struct ProvenConnection {
  FileDescriptor fd;
  std::string name;  // The peer's, for error messages.
  Identity peer;
};

// A source of proven connections. It has no thread: its owner's poll loop calls take(). Not thread
// safe.
class ConnectionSource {
 public:
  virtual ~ConnectionSource() = default;

  // Has POLLIN when take() has something to do. -1: there is nothing to do before time_until_due().
  virtual int descriptor() const = 0;
  // Time until take() is due even without an event. Never negative.
  virtual Duration time_until_due() const = 0;
  // The connections that have come so far. Does not block.
  virtual std::vector<ProvenConnection> take() = 0;
  // Why the last attempt to take a connection failed; ok if it succeeded.
  virtual const Status& shortage() const = 0;
  // Why no more connections will ever come; ok: more may come.
  virtual Status end() const { return {}; }
};

}  // namespace stretto::bootstrap
