// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/base/wait_limit.h"

namespace stretto::bootstrap {

// Stream sockets with limits on waiting. Every socket made here is non-blocking and closed on exec;
// TCP sockets send small messages at once. The functions that wait do so in poll(), on any kind of
// socket, for no longer than their limit, and may be called from any thread. An interruption's
// failure is returned as it is. No call raises SIGPIPE.

// Binds the first address that `host` resolves to, and no other. Port 0: the system chooses one.
// The limit is for looking up the name.
Result<FileDescriptor> listen_tcp(const std::string& host, int port,
                                  const WaitLimit& limit = Deadline());

// One port, or the first and last of those that may be used.
struct PortRange {
  int first = 0;
  int last = 0;

  friend bool operator==(const PortRange&, const PortRange&) = default;
};
// "29600" or "29600-29631". Fails with invalid_argument.
Result<PortRange> parse_port_range(std::string_view text);
// The same on the first port that nobody else listens on.
Result<FileDescriptor> listen_tcp(const std::string& host, const PortRange& ports,
                                  const WaitLimit& limit);

// Tries every address of `host` in turn, and again with growing pauses until the deadline: peers
// start at different times. A warning every 15 s says what is being waited for.
Result<FileDescriptor> connect_tcp(const std::string& host, int port, const WaitLimit& limit);

// Unix sockets in the abstract namespace: no file, gone with the last process. `name` has 1 to 107
// bytes. Everybody in the same network namespace can connect, so a handshake must follow.
Result<FileDescriptor> listen_unix_abstract(const std::string& name);
// Retries like connect_tcp.
Result<FileDescriptor> connect_unix_abstract(const std::string& name, const WaitLimit& limit);

// Waits for the next connection. `listener` must come from one of the functions above.
Result<FileDescriptor> accept(int listener, const WaitLimit& limit);

// The port a TCP socket is bound to.
Result<int> local_port(int fd);
// The numeric address of this side of a TCP connection: one by which the peer's host can reach this
// one.
Result<std::string> local_host(int fd);
// And of the other side.
Result<std::string> peer_host(int fd);
// A socket that takes IPv4 as well as IPv6 has an IPv4 address in the form of one of IPv6: makes it
// one of IPv4 again, as the other side has it. Leaves others as they are.
void unmap(sockaddr_storage& address);
// "127.0.0.1:4242", "[::1]:4242" or "a process of this host": for messages. Never fails.
std::string peer_name(int fd);

// Fails with peer_lost if the connection ends early, with timeout, saying how many bytes had come.
Status read_exactly(int fd, ByteSpan bytes, const WaitLimit& limit);
Status write_all(int fd, ConstByteSpan bytes, const WaitLimit& limit);

// Sleeps until `fd` has one of the poll() events `events`, or an error, or the deadline has passed
// (timeout).
Status wait_for(int fd, short events, const WaitLimit& limit);

struct HostPort {
  std::string host;
  int port = 0;
};
// "node0:29600", "10.0.0.7:29600", "[fe80::1]:29600". Fails with invalid_argument.
Result<HostPort> parse_host_port(std::string_view text);
// The reverse: brackets around IPv6 addresses.
std::string format_host_port(std::string_view host, int port);

}  // namespace stretto::bootstrap
