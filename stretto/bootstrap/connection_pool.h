// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/mutex.h"
#include "stretto/base/status.h"
#include "stretto/base/wait_limit.h"

namespace stretto::bootstrap {

// Connections to one store server, each used by one call at a time. So a thread that waits for
// a key keeps no other from setting it, and a request that was given up costs its connection and
// nothing else. Any thread.
class ConnectionPool {
 public:
  using Connect = std::function<Result<FileDescriptor>(const WaitLimit&)>;

  explicit ConnectionPool(Connect connect) : connect_(std::move(connect)) {}

  // One that is idle, or a new one.
  Result<FileDescriptor> take(const WaitLimit& limit) {
    {
      const MutexLock lock(mutex_);
      if (!idle_.empty()) {
        FileDescriptor connection = std::move(idle_.back());
        idle_.pop_back();
        return connection;
      }
    }
    return connect_(limit);
  }

  // To be called only after a complete exchange; otherwise let the connection close.
  void give_back(FileDescriptor connection) {
    const MutexLock lock(mutex_);
    idle_.push_back(std::move(connection));
  }

 private:
  Connect connect_;
  Mutex mutex_;
  std::vector<FileDescriptor> idle_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::bootstrap
