// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/resolve.h"

#include <condition_variable>

#include "stretto/base/mutex.h"
#include "stretto/base/scope_exit.h"
#include "stretto/base/thread.h"
#include "stretto/base/wait_until.h"

namespace stretto::bootstrap {
namespace {

Result<Addresses> look_up(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error == EAI_SYSTEM) return system_status("looking up \"" + host + "\"");
  if (error != 0) {
    return status_of(StatusCode::system, "looking up \"{}\": {}", host, ::gai_strerror(error));
  }
  return Addresses(list);
}

// Shared by the caller and the thread that looks up; either may live longer.
struct Lookup {
  Mutex mutex;
  std::condition_variable done;
  bool has_ended STRETTO_GUARDED_BY(mutex) = false;
  Result<Addresses> found STRETTO_GUARDED_BY(mutex) =
      Status(StatusCode::system, "the thread that looks a name up has ended early; see the log");
};

}  // namespace

Result<Addresses> resolve(const std::string& host, int port, const WaitLimit& limit) {
  if (host.empty() || port < 0 || port > 65535) {
    return status_of(StatusCode::invalid_argument, "\"{}:{}\" is no address: want host:port", host,
                     port);
  }
  if (Result<Addresses> numeric = look_up(host, port, AI_NUMERICHOST); numeric.ok()) return numeric;
  const auto lookup = std::make_shared<Lookup>();
  STRETTO_ASSIGN_OR_RETURN(auto thread, start_thread("stretto-resolve", [lookup, host, port] {
                             const ScopeExit tell([&] {
                               const MutexLock lock(lookup->mutex);
                               lookup->has_ended = true;
                               lookup->done.notify_all();
                             });
                             Result<Addresses> found = look_up(host, port, 0);
                             const MutexLock lock(lookup->mutex);
                             lookup->found = std::move(found);
                           }));
  thread.detach();
  MutexLock lock(lookup->mutex);
  const auto has_ended = [&]() STRETTO_REQUIRES(lookup->mutex) { return lookup->has_ended; };
  STRETTO_ASSIGN_OR_RETURN(const bool is_answered,
                           wait_until(lookup->done, lock, limit, has_ended));
  if (!is_answered) {
    return status_of(StatusCode::system, "looking up \"{}\": no answer in time", host);
  }
  return std::move(lookup->found);
}

}  // namespace stretto::bootstrap
