// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/socket_pairs.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace stretto::testing {

std::pair<FileDescriptor, FileDescriptor> make_tcp_pair(int buffer_bytes) {
  const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  FileDescriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any_address = reinterpret_cast<sockaddr*>(&address);
  // Buffers are inherited from the listener, and the window is agreed upon when connecting.
  for (const int socket : {listener.get(), client.get()}) {
    if (buffer_bytes == 0) continue;
    ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(buffer_bytes));
    ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof(buffer_bytes));
  }
  EXPECT_EQ(::bind(listener.get(), any_address, length), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), any_address, &length), 0);
  EXPECT_EQ(::connect(client.get(), any_address, length), 0);
  FileDescriptor server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(server.valid());
  const int on = 1;
  for (const int socket : {server.get(), client.get()}) {
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  return {std::move(client), std::move(server)};
}

std::pair<FileDescriptor, FileDescriptor> make_unix_pair(int type) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace stretto::testing
