// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_client.h"

#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/own_address.h"
#include "stretto/bootstrap/socket.h"

namespace stretto::bootstrap {

std::string StoreClient::resolved() const {
  if (!owner_process_.is_here()) return {};
  const MutexLock lock(mutex_);
  return resolved_;
}

std::string StoreClient::server() const {
  std::string address = resolved();
  return address.empty() ? format_host_port(address_.host, address_.port) : address;
}

std::string StoreClient::describe() const {
  const std::string named = format_host_port(address_.host, address_.port);
  const std::string address = resolved();
  if (address.empty() || address == named) return address_.owner + " at " + named;
  // If a name leads back to this host, as Debian's host names do, the text keeps the name, which is
  // valid on other hosts.
  const Result<HostPort> peer = parse_host_port(address);
  if (peer.ok() && is_loopback(peer.value().host)) {
    return fmt::format("{} at {} (on this host {})", address_.owner, named, address);
  }
  return fmt::format("{} at {} (resolved from \"{}\")", address_.owner, address, address_.host);
}

Status StoreClient::open(const WaitLimit& limit) {
  Result<FileDescriptor> first = take_connection(limit);
  if (!first.ok()) return first.status().with_context(describe());
  give_back(std::move(*first));
  return {};
}

Result<FileDescriptor> StoreClient::take_connection(const WaitLimit& limit) {
  if (owner_process_.is_here()) {
    const MutexLock lock(mutex_);
    if (!idle_.empty()) {
      FileDescriptor connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  return connect(limit);
}

void StoreClient::give_back(FileDescriptor connection) {
  if (!owner_process_.is_here()) return;
  const MutexLock lock(mutex_);
  idle_.push_back(std::move(connection));
}

Result<FileDescriptor> StoreClient::connect(const WaitLimit& limit) {
  const auto reach = [&] {
    Result<FileDescriptor> fd = connect_tcp(address_.host, address_.port, limit);
    if (fd.ok() && owner_process_.is_here()) {
      const MutexLock lock(mutex_);
      resolved_ = peer_name(fd->get());
    }
    return fd;
  };
  return connect_and_greet(
      reach, [&](int fd) { return greet(fd, limit); }, limit);
}

Result<StoreReply> StoreClient::answer(const StoreRequest& request, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(FileDescriptor connection, take_connection(limit));
  Result<StoreReply> reply = exchange(connection.get(), request, limit);
  if (reply.ok()) {
    give_back(std::move(connection));
  } else if (owner_process_.is_here()) {
    // After an outage all idle connections are broken. The next call makes a new one.
    const MutexLock lock(mutex_);
    idle_.clear();
  }
  return reply;
}

}  // namespace stretto::bootstrap
