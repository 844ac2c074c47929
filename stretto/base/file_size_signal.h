// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <signal.h>

namespace stretto {

// While an object exists, a call of this thread that would exceed the limit on file sizes (ulimit
// -f) fails with EFBIG, instead of ending the process by SIGXFSZ. This includes anonymous files
// (memfd). The thread that made the object must destroy it.
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
