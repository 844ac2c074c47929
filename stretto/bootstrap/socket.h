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
// TCP sockets send small messages at once. Functions that wait do so in poll(), on any kind of
// socket, no longer than their limit, and may be called from any thread. A failure of the limit's
// interruption is returned unchanged. No call raises SIGPIPE.

// Binds only the first address that `host` resolves to. Port 0: the system chooses one. `limit` is
// for looking up the name.
Result<FileDescriptor> listen_tcp(const std::string& host, int port,
                                  const WaitLimit& limit = Deadline());

// The same on the first free port of a range.
Result<FileDescriptor> listen_tcp(const std::string& host, const PortRange& ports,
                                  const WaitLimit& limit);

// Connects to the first address of all `places` that answers. Each address is tried a quarter of a
// second after the one before, or as soon as all before it have failed. Repeats this with growing
// pauses until the deadline, as peers start at different times. Logs a warning every 15 s.
Result<FileDescriptor> connect_tcp(std::span<const HostPort> places, const WaitLimit& limit);
Result<FileDescriptor> connect_tcp(const std::string& host, int port, const WaitLimit& limit);

// Unix sockets in the abstract namespace: they have no file and vanish with the last process.
// `name` has 1 to 107 bytes. Every process in the network namespace can connect, so a handshake
// must follow.
Result<FileDescriptor> listen_unix_abstract(const std::string& name);
// Retries like connect_tcp.
Result<FileDescriptor> connect_unix_abstract(const std::string& name, const WaitLimit& limit);

// Waits for the next connection. `listener` must come from one of the functions above.
Result<FileDescriptor> accept(int listener, const WaitLimit& limit);

// The port a TCP socket is bound to.
Result<int> local_port(int fd);
// The numeric address of this side of a TCP connection, by which the peer's host can reach this
// one.
Result<std::string> local_host(int fd);
// The numeric address of the other side.
Result<std::string> peer_host(int fd);
// "10.0.4.7", for an IPv4 or IPv6 address.
std::string numeric_host(const sockaddr& address);
// Turns an IPv4-mapped IPv6 address, as a socket for both protocols reports it, into the IPv4
// address that the other side sees. Leaves other addresses unchanged.
void unmap(sockaddr_storage& address);
// "127.0.0.1:4242", "[::1]:4242" or "a process of this host": for messages. Never fails.
std::string peer_name(int fd);

// Both fail with peer_lost if the connection ends early, and with timeout at the limit, saying how
// many bytes were moved.
Status read_exactly(int fd, ByteSpan bytes, const WaitLimit& limit);
Status write_all(int fd, ConstByteSpan bytes, const WaitLimit& limit);

// Sleeps until `fd` has one of the poll() events `events` or an error. Fails with timeout at the
// deadline.
Status wait_for(int fd, short events, const WaitLimit& limit);

}  // namespace stretto::bootstrap
