// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "stretto/base/poll.h"

namespace stretto::launch {

Result<Signals> Signals::open() {
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
  ::sigaction(SIGXFSZ, &action, nullptr);
  // Our parent may have ignored it; then the system would reap the guardian before us.
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &action, nullptr);

  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
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

std::optional<int> Signals::wait(Deadline deadline, const std::vector<int>& others) const {
  std::vector<pollfd> entries{{fd_.get(), POLLIN, 0}};
  for (const int other : others) entries.push_back({other, POLLIN, 0});
  while (true) {
    signalfd_siginfo info{};
    if (::read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
      return static_cast<int>(info.ssi_signo);
    }
    const int wait_ms = poll_milliseconds(deadline.remaining());
    if (::poll(entries.data(), entries.size(), wait_ms) < 0 && errno != EINTR) return std::nullopt;
    const bool is_ready = std::any_of(entries.begin() + 1, entries.end(),
                                      [](const pollfd& entry) { return entry.revents != 0; });
    if (is_ready || deadline.passed()) return std::nullopt;
  }
}

}  // namespace stretto::launch
