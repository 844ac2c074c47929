// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/thread.h"

#include <pthread.h>

#include <exception>
#include <system_error>

#include "stretto/base/log.h"

namespace stretto {

Result<std::thread> start_thread(const std::string& name, std::function<void()> function) {
  try {
    return std::thread([name, function = std::move(function)] {
      ::pthread_setname_np(::pthread_self(), name.c_str());
      try {
        function();
      } catch (const std::exception& failure) {
        log(LogLevel::error, "the thread {} has ended: {}", name, failure.what());
      }
    });
  } catch (const std::system_error& failure) {
    return status_of(StatusCode::system,
                     "the thread {} could not be started: {}. Look at the limits on threads "
                     "(ulimit -u, pids.max of the container) and on memory (ulimit -v)",
                     name, failure.code().message());
  }
}

}  // namespace stretto
