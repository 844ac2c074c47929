// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <string>
#include <thread>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto {

// Starts a thread that runs `function`. Debuggers and `top -H` show `name` (at most 15 bytes).
// Fails with `system` if the system allows no further thread; the message says which limits to look
// at. If an exception leaves `function`, the thread ends with a line in the log, and the process
// goes on. The thread takes no signals of the process (SignalsBlocked).
Result<std::thread> start_thread(const std::string& name, std::function<void()> function);

// A thread that sleeps in poll() or epoll_wait() and can be told to stop. It must be the last
// member of its owner, so that it ends before the members that it uses are destroyed. Not thread
// safe.
class StoppableThread {
 public:
  StoppableThread() = default;
  StoppableThread(const StoppableThread&) = delete;
  StoppableThread& operator=(const StoppableThread&) = delete;
  ~StoppableThread() { stop(); }

  // Starts the thread; may be called once. `function` gets a descriptor and must return when the
  // descriptor becomes readable. Fails as start_thread() does, and if the system has no descriptor
  // left.
  Status start(const std::string& name, std::function<void(int stop)> function);
  // Tells the thread to stop, if one runs, and waits until it has ended.
  void stop();

 private:
  FileDescriptor stop_;
  std::thread thread_;
};

}  // namespace stretto
