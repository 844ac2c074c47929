// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <signal.h>

namespace stretto {

// While one lives, this thread takes no signal of the process, and nor does, for good, a thread
// that it starts: the program may wait for signals on a thread of its own. What an instruction of
// the thread itself raises still comes, and so does the clock of profilers, which look at the
// thread that it interrupts.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    ::sigfillset(&blocked);
    for (const int left : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGPROF}) {
      ::sigdelset(&blocked, left);
    }
    ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace stretto
