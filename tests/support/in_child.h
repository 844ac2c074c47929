// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace stretto::testing {

// Runs `body` in a child process and returns its result, which is the exit code of the child; -1 if
// there is no child, or it ends otherwise, for example because `body` throws.
template <class Body>
int exit_code_in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child < 0) return -1;
  if (child == 0) ::_exit([&]() noexcept { return body(); }());
  int status = 0;
  const bool has_exited = ::waitpid(child, &status, 0) == child && WIFEXITED(status);
  return has_exited ? WEXITSTATUS(status) : -1;
}

}  // namespace stretto::testing
