// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto::launch {

struct ChildOptions {
  std::vector<std::string> command = {};
  std::vector<std::string> environment = {};  // "NAME=value"
  // A descriptor that stays open in the child, under the same number; -1: none. All others but the
  // standard ones are closed, as far as they are close-on-exec.
  int inherited_fd = -1;
  // The child's standard input; -1: /dev/null.
  int input = -1;
  // Starts the child in a session of its own, which has no terminal.
  bool own_session = false;
};

struct Child {
  pid_t pid = -1;
  // The reading ends of the pipes from its standard output and standard error.
  FileDescriptor output;
  FileDescriptor errors;
};

struct Pipe {
  FileDescriptor reading;
  FileDescriptor writing;
};
Result<Pipe> make_pipe();

// Returns the error that `what` could not be started. Call it right after fork() has failed.
Status fork_status(std::string_view what);

// Starts the program in a process group of its own, whose id is the child's pid, with default
// signal handling. The system kills it when the calling thread ends. Blocks until the program runs.
// If it could not be executed, `error_number` is the errno, else 0 or unchanged.
Result<Child> start_child(const ChildOptions& options, int& error_number);

// How long killed processes have to end. A driver may keep one for ever.
inline constexpr Duration kKillTime = std::chrono::seconds(15);

// Waits for at most `time` until a child has ended; false if it has not. Does not reap it.
bool ends_within(pid_t child, Duration time);

}  // namespace stretto::launch
