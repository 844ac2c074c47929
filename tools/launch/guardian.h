// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto::launch {

// A small process that outlives a launcher which is killed without warning (SIGKILL), and then
// kills the process groups the launcher had started: the ranks, and what the ranks have started.
// Nothing is left behind.
class Guardian {
 public:
  // Must be called before the process has a second thread.
  static Result<Guardian> start();
  Guardian(Guardian&&) = default;
  Guardian& operator=(Guardian&&) = delete;
  // All went well: the guardian ends without killing anybody.
  ~Guardian();

  void watch(pid_t process_group) const;

 private:
  Guardian(pid_t pid, FileDescriptor pipe) : pid_(pid), pipe_(std::move(pipe)) {}

  pid_t pid_;
  FileDescriptor pipe_;
};

}  // namespace stretto::launch
