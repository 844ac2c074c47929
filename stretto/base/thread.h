// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <string>
#include <thread>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto {

// Starts a thread that runs `function`. `name` is what debuggers and `top -H` show (at most 15
// bytes). Fails with system, and a sentence that says which limits to look at, where the system
// allows no further thread. An exception that leaves `function` ends the thread with a line in the
// log, not the process. The thread takes no signals of the process (SignalsBlocked).
Result<std::thread> start_thread(const std::string& name, std::function<void()> function);

// A thread that sleeps in poll() or epoll_wait(), and can be told to stop. The last member of its
// owner, so that it has ended before what it uses does. Not thread safe.
class StoppableThread {
 public:
  StoppableThread() = default;
  StoppableThread(const StoppableThread&) = delete;
  StoppableThread& operator=(const StoppableThread&) = delete;
  ~StoppableThread() { stop(); }

  // Once. `function` gets a descriptor, and returns when it has something to read. Fails as
  // start_thread() does, and where the system has no descriptor left.
  Status start(const std::string& name, std::function<void(int stop)> function);
  // Tells the thread, if one runs, and waits until it has ended.
  void stop();

 private:
  FileDescriptor stop_;
  std::thread thread_;
};

}  // namespace stretto
