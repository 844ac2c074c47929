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
  // Stays open in the child under its number; everything else is closed.
  int inherited_fd = -1;
  // Its standard input; -1: /dev/null.
  int input = -1;
  // Also a session of its own, which has no terminal.
  bool own_session = false;
};

struct Child {
  pid_t pid = -1;
  // The reading ends of pipes.
  FileDescriptor output;
  FileDescriptor errors;
};

struct Pipe {
  FileDescriptor reading;
  FileDescriptor writing;
};
Result<Pipe> make_pipe();

// That `what` could not be started, as fork() has just failed.
Status fork_status(std::string_view what);

// Starts the program in a process group of its own (its id is the child's pid), with
// default signal handling and a promise of the system to kill it when the calling thread
// dies. Returns once the program runs. `error_number` is set if it could not be executed.
Result<Child> start_child(const ChildOptions& options, int& error_number);

// How long processes that have been killed have to end: a driver may keep one for ever.
inline constexpr Duration kKillTime = std::chrono::seconds(15);

// Waits for a child to end, so long at most. It stays to be reaped.
bool ends_within(pid_t child, Duration time);

}  // namespace stretto::launch
