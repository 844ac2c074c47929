// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/thread.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <system_error>

#include "stretto/base/catch_all.h"
#include "stretto/base/log.h"
#include "stretto/base/signals_blocked.h"

namespace stretto {

Result<std::thread> start_thread(const std::string& name, std::function<void()> function) {
  try {
    const SignalsBlocked signals_blocked;
    return std::thread([name, function = std::move(function)] {
      ::pthread_setname_np(::pthread_self(), name.c_str());
      catch_all(function, [&](const char* what) {
        log(LogLevel::error, "the thread {} has ended: {}", name, what);
      });
    });
  } catch (const std::system_error& failure) {
    return status_of(StatusCode::system,
                     "the thread {} could not be started: {}. Look at the limits on threads "
                     "(ulimit -u, pids.max of the container) and on memory (ulimit -v)",
                     name, failure.code().message());
  }
}

Status StoppableThread::start(const std::string& name, std::function<void(int stop)> function) {
  stop_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.valid()) return system_status("eventfd");
  STRETTO_ASSIGN_OR_RETURN(thread_, start_thread(name, [function = std::move(function),
                                                        stop = stop_.get()] { function(stop); }));
  return {};
}

void StoppableThread::stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

}  // namespace stretto
