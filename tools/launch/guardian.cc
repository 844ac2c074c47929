// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace stretto::launch {
namespace {

// What the launcher writes instead of a process group when it ends in good order.
constexpr pid_t kFarewell = 0;

[[noreturn]] void guard(int pipe) {
  ::setsid();
  ::prctl(PR_SET_NAME, "stretto-guard");
  // Whoever reads the launcher's output must see it end with the launcher.
  ::dup2(pipe, STDIN_FILENO);
  ::close_range(STDIN_FILENO + 1, ~0U, 0);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  std::vector<pid_t> groups;
  while (true) {
    pid_t group = kFarewell;
    const ssize_t count = ::read(STDIN_FILENO, &group, sizeof(group));
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof(group)) break;
    if (group == kFarewell) ::_exit(0);
    groups.push_back(group);
  }
  for (pid_t group : groups) ::kill(-group, SIGKILL);
  ::_exit(0);
}

}  // namespace

Result<Guardian> Guardian::start() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_status("pipe");
  FileDescriptor reading(ends[0]);
  FileDescriptor writing(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return system_status("fork");
  if (pid == 0) {
    writing.reset();
    guard(reading.get());
  }
  return Guardian(pid, std::move(writing));
}

Guardian::~Guardian() {
  if (!pipe_.valid()) return;
  watch(kFarewell);
  pipe_.reset();
  ::waitpid(pid_, nullptr, 0);
}

void Guardian::watch(pid_t process_group) const {
  // A few bytes into an empty pipe: neither blocks nor comes apart. If the guardian is gone, the
  // system still kills the ranks themselves with the launcher.
  (void)!::write(pipe_.get(), &process_group, sizeof(process_group));
}

}  // namespace stretto::launch
