// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/file_size_signal.h"

#include <cerrno>
#include <ctime>

namespace stretto {

FileSizeSignalBlocked::FileSizeSignalBlocked() {
  sigset_t pending;
  ::sigpending(&pending);
  pending_before_ = ::sigismember(&pending, SIGXFSZ) == 1;
  ::sigemptyset(&signal_);
  ::sigaddset(&signal_, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &signal_, &blocked_before_);
}

FileSizeSignalBlocked::~FileSizeSignalBlocked() {
  const int error_number = errno;
  const timespec no_time{};
  // The system sends the signal to the thread that made the call, so it is pending by now.
  if (!pending_before_) ::sigtimedwait(&signal_, nullptr, &no_time);
  ::pthread_sigmask(SIG_SETMASK, &blocked_before_, nullptr);
  errno = error_number;
}

}  // namespace stretto
