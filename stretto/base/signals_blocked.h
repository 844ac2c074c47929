// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <signal.h>

namespace stretto {

// While an object exists, this thread takes no signals of the process, because the program may wait
// for signals on a thread of its own. A thread that is started meanwhile never takes any. Signals
// that an instruction of the thread raises still arrive, and so does SIGPROF, the clock of
// profilers, which look at the thread that it interrupts.
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
