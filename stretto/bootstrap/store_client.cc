// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_client.h"

#include "stretto/bootstrap/socket.h"

namespace stretto::bootstrap {

std::string StoreClient::describe() const {
  const std::string named = format_host_port(address_.host, address_.port);
  const std::lock_guard lock(mutex_);
  if (resolved_.empty() || resolved_ == named) return address_.owner + " at " + named;
  return fmt::format("{} at {} (resolved from \"{}\")", address_.owner, resolved_, address_.host);
}

Status StoreClient::open(Deadline deadline) {
  Result<FileDescriptor> first = pool_.take(deadline);
  if (!first.ok()) return first.status().with_context(describe());
  pool_.give_back(std::move(*first));
  return {};
}

Result<FileDescriptor> StoreClient::connect(Deadline deadline) {
  Result<FileDescriptor> fd = connect_tcp(address_.host, address_.port, deadline);
  if (!fd.ok()) return fd;
  {
    const std::lock_guard lock(mutex_);
    resolved_ = peer_name(fd->get());
  }
  STRETTO_RETURN_IF_ERROR(greet(fd->get(), deadline));
  return fd;
}

Result<StoreReply> StoreClient::answer(const StoreRequest& request, Deadline deadline) {
  Result<FileDescriptor> connection = pool_.take(deadline);
  if (!connection.ok()) return connection.status();
  Result<StoreReply> reply = exchange(connection->get(), request, deadline);
  const StatusCode code = reply.status().code();
  if (code == StatusCode::ok || code == StatusCode::refused ||
      code == StatusCode::invalid_argument) {
    pool_.give_back(std::move(*connection));
  }
  return reply;
}

}  // namespace stretto::bootstrap
