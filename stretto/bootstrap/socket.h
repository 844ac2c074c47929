// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/socket.h>

#include <span>
#include <string>
#include <string_view>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/base/wait_limit.h"
#include "stretto/bootstrap/host_port.h"

namespace stretto::bootstrap {

// Stream sockets with limits on waiting. Every socket made here is non-blocking and closed on exec;
// TCP sockets send small messages at once. The functions that wait do so in poll(), on any kind of
// socket, for no longer than their limit, and may be called from any thread. An interruption's
// failure is returned as it is. No call raises SIGPIPE.

// Binds the first address that `host` resolves to, and no other. Port 0: the system chooses one.
// The limit is for looking up the name.
Result<FileDescriptor> listen_tcp(const std::string& host, int port,
                                  const WaitLimit& limit = Deadline());

// The same on the first port that nobody else listens on.
Result<FileDescriptor> listen_tcp(const std::string& host, const PortRange& ports,
                                  const WaitLimit& limit);

// Connects to whichever address of all these places answers first; those in front have a head start
// of a quarter of a second each. Tries again with growing pauses until the deadline: peers start at
// different times. A warning every 15 s says what is being waited for.
Result<FileDescriptor> connect_tcp(std::span<const HostPort> places, const WaitLimit& limit);
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
// "10.0.4.7", of an address of IPv4 or IPv6.
std::string numeric_host(const sockaddr& address);
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

}  // namespace stretto::bootstrap
