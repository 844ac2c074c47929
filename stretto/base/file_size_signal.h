// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <signal.h>

namespace stretto {

// While one lives, a call of this thread that would make a file, or memory without a name, larger
// than the limit on file sizes (ulimit -f) fails with EFBIG, and does not end the process by
// SIGXFSZ. Belongs to the thread that made it.
class FileSizeSignalBlocked {
 public:
  FileSizeSignalBlocked();
  FileSizeSignalBlocked(const FileSizeSignalBlocked&) = delete;
  FileSizeSignalBlocked& operator=(const FileSizeSignalBlocked&) = delete;
  ~FileSizeSignalBlocked();

 private:
  sigset_t signal_;
  sigset_t blocked_before_;
  bool pending_before_;
};

}  // namespace stretto
