// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/signals.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "stretto/bootstrap/socket.h"

namespace stretto::launch {

Result<Signals> Signals::open() {
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
  // Whoever started us may have ignored it; then nobody would learn how a child ended.
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &action, nullptr);

  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
    struct sigaction current {};
    ::sigaction(number, nullptr, &current);
    if (current.sa_handler != SIG_IGN) ::sigaddset(&wanted, number);
  }
  if (::sigprocmask(SIG_BLOCK, &wanted, nullptr) != 0) return system_status("sigprocmask");
  Signals signals;
  signals.fd_ = FileDescriptor(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.fd_.valid()) return system_status("signalfd");
  return signals;
}

std::optional<int> Signals::wait(Deadline deadline) const {
  signalfd_siginfo info{};
  do {
    if (::read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
      return static_cast<int>(info.ssi_signo);
    }
  } while (bootstrap::wait_for(fd_.get(), POLLIN, deadline).ok());
  return std::nullopt;
}

}  // namespace stretto::launch
