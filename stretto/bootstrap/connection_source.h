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
  std::string name;  // Of the peer, for messages.
  Identity peer;
};

// Where such connections come from. It has no thread: its owner's poll loop calls take(). Not
// thread safe.
class ConnectionSource {
 public:
  virtual ~ConnectionSource() = default;

  // Has POLLIN when take() has something to do; -1: there is nothing before time_until_due().
  virtual int descriptor() const = 0;
  // After this time take() is due, whatever has come. Never negative.
  virtual Duration time_until_due() const = 0;
  // Those that are there. Does not block.
  virtual std::vector<ProvenConnection> take() = 0;
  // Why the last connection could not be taken, since when none has been; ok: all are taken.
  virtual const Status& shortage() const = 0;
  // Why no other connection will ever come; ok: one may.
  virtual Status end() const { return {}; }
};

}  // namespace stretto::bootstrap
