// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/peer_user.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/socket.h"

namespace stretto::bootstrap {
namespace {

// An address as the kernel prints it in /proc/net/tcp: the IP address as words in memory order, the
// port as a number.
std::string printed(const sockaddr_storage& address) {
  std::string text;
  const auto add_words = [&](const void* bytes, std::size_t count) {
    for (std::size_t word = 0; word < count; ++word) {
      std::uint32_t value = 0;
      std::memcpy(&value, static_cast<const char*>(bytes) + 4 * word, sizeof(value));
      text += fmt::format("{:08X}", value);
    }
  };
  if (address.ss_family == AF_INET) {
    const auto& inet = reinterpret_cast<const sockaddr_in&>(address);
    add_words(&inet.sin_addr, 1);
    return text + fmt::format(":{:04X}", ntohs(inet.sin_port));
  }
  const auto& inet6 = reinterpret_cast<const sockaddr_in6&>(address);
  add_words(&inet6.sin6_addr, 4);
  return text + fmt::format(":{:04X}", ntohs(inet6.sin6_port));
}

// Looks for the socket whose peer is `own` and whose own address is `peer`.
std::optional<uid_t> user_in_table(const char* path, const std::string& own,
                                   const std::string& peer) {
  std::ifstream table(path);
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, timeout;
    uid_t user = 0;
    std::uint64_t inode = 0;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeout >> inode;
    // A socket that no process holds any more has inode 0 and user root, which proves nothing.
    if (fields && local == peer && remote == own && inode != 0) return user;
  }
  return std::nullopt;
}

}  // namespace

std::optional<uid_t> peer_user(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_bytes = sizeof(own);
  socklen_t peer_bytes = sizeof(peer);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) != 0) return std::nullopt;
  if (own.ss_family == AF_UNIX) {
    ucred credentials{};
    socklen_t bytes = sizeof(credentials);
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) return std::nullopt;
    return credentials.uid;
  }
  const bool inet = own.ss_family == AF_INET || own.ss_family == AF_INET6;
  if (!inet || ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_bytes) != 0) {
    return std::nullopt;
  }
  unmap(own);
  unmap(peer);
  return user_in_table(own.ss_family == AF_INET ? "/proc/self/net/tcp" : "/proc/self/net/tcp6",
                       printed(own), printed(peer));
}

bool peer_is_trusted_user(int fd) {
  const std::optional<uid_t> user = peer_user(fd);
  return user && (*user == ::geteuid() || *user == 0);
}

Result<UnixListener> listen_to_own_user() {
  STRETTO_ASSIGN_OR_RETURN(const JobKey random, JobKey::generate());
  std::string name = "stretto-" + random.hexadecimal().substr(0, 32);
  STRETTO_ASSIGN_OR_RETURN(FileDescriptor socket, listen_unix_abstract(name));
  return UnixListener{std::move(socket), std::move(name)};
}

// Checks the user first, because the listener would close the connection of another user without a
// message.
Result<FileDescriptor> connect_to_own_user(const std::string& name, const WaitLimit& limit) {
  Result<FileDescriptor> socket = connect_unix_abstract(name, limit);
  if (!socket.ok() || ::geteuid() == 0) return socket;
  const std::optional<uid_t> user = peer_user(socket->get());
  if (user == ::geteuid()) return socket;
  return status_of(StatusCode::refused,
                   "it belongs to {}, and this process to user {}: start the ranks of a host as "
                   "one user, so that they can share memory and a port",
                   user ? fmt::format("user {}", *user) : "an unknown user", ::geteuid());
}

}  // namespace stretto::bootstrap
