// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "stretto/base/log.h"
#include "stretto/base/parse_number.h"
#include "stretto/base/poll.h"
#include "stretto/base/would_block.h"
#include "stretto/bootstrap/resolve.h"
#include "stretto/transport/shortage.h"

namespace stretto::bootstrap {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::milliseconds(500);
// A firewall that swallows packets must not keep us from trying the host's other addresses.
constexpr Duration kLongestAttempt = std::chrono::seconds(5);
constexpr Duration kReminder = std::chrono::seconds(15);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

std::string numeric_host(const SocketAddress& address) {
  char host[NI_MAXHOST];
  if (::getnameinfo(address.get(), address.length, host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  return host;
}

int port_of(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
}

std::string describe(const addrinfo& entry) {
  SocketAddress address;
  std::memcpy(&address.storage, entry.ai_addr, entry.ai_addrlen);
  address.length = entry.ai_addrlen;
  return format_host_port(numeric_host(address), port_of(address));
}

Result<SocketAddress> local_address(int fd) {
  SocketAddress address;
  if (::getsockname(fd, address.get(), &address.length) != 0) return system_status("getsockname");
  if (address.storage.ss_family != AF_INET && address.storage.ss_family != AF_INET6) {
    return status_of(StatusCode::invalid_argument, "not a TCP socket");
  }
  unmap(address.storage);
  return address;
}

// Small messages leave at once, and a host that has vanished is noticed in about ten seconds,
// whether the connection is idle or not. All of it fails on Unix sockets, which need none of it.
void set_up_tcp(int fd) {
  const auto set = [&](int level, int option, int value) {
    (void)::setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 4);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
}

// Why a connection has ended. The text of the system leaves open what to look at.
Status connection_status(std::string_view call) {
  const int error = errno;
  const Status status = system_status(call, error);
  if (error != ETIMEDOUT && error != EHOSTUNREACH && error != ENETUNREACH) return status;
  return status_of(StatusCode::system, "{}: the network to it, or its host, is down",
                   status.message());
}

// On loopback a client whose own port happens to be the one it connects to reaches itself.
bool connected_to_itself(int fd) {
  SocketAddress here;
  SocketAddress there;
  return ::getsockname(fd, here.get(), &here.length) == 0 &&
         ::getpeername(fd, there.get(), &there.length) == 0 && here.length == there.length &&
         here.storage.ss_family != AF_UNIX &&
         std::memcmp(&here.storage, &there.storage, here.length) == 0;
}

Result<FileDescriptor> open_socket(int family) {
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return system_status("socket");
  return fd;
}

// One attempt. Fails with system if the peer is not there (yet).
Result<FileDescriptor> connect_once(int family, const sockaddr* address, socklen_t length,
                                    const WaitLimit& limit) {
  Result<FileDescriptor> fd = open_socket(family);
  if (!fd.ok()) return fd;
  if (::connect(fd->get(), address, length) != 0) {
    if (errno != EINPROGRESS) return system_status("connect");
    const WaitLimit attempt = limit.within(kLongestAttempt);
    const Status connected = wait_for(fd->get(), POLLOUT, attempt);
    if (!connected.ok() && !attempt.passed()) return connected;
    if (!connected.ok()) return system_status("connect", ETIMEDOUT);
    int error = 0;
    socklen_t size = sizeof(error);
    if (::getsockopt(fd->get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      return system_status("getsockopt");
    }
    if (error != 0) return system_status("connect", error);
  }
  if (connected_to_itself(fd->get())) return system_status("connect", ECONNREFUSED);
  set_up_tcp(fd->get());
  return fd;
}

Result<FileDescriptor> connect_any(const std::string& host, int port, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const Addresses addresses, resolve(host, port, limit));
  Status last;
  for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    Result<FileDescriptor> fd =
        connect_once(entry->ai_family, entry->ai_addr, entry->ai_addrlen, limit);
    if (fd.ok() || fd.status().code() != StatusCode::system) return fd;
    last = fd.status().with_context(describe(*entry));
    if (limit.passed()) break;
  }
  return last;
}

// Fails if this process cannot open any more descriptors: then the cause lies here, and not with
// the server that could not be reached.
Status find_shortage() {
  const FileDescriptor probe(::eventfd(0, EFD_CLOEXEC));
  return probe.valid() ? Status() : system_status("a socket");
}

// Repeats `attempt` until it succeeds, fails with something that time does not cure, or the
// limit is reached.
template <class Attempt>
Result<FileDescriptor> retry(const std::string& target, const WaitLimit& limit, Attempt attempt) {
  const TimePoint start = Clock::now();
  TimePoint next_reminder = start + kReminder;
  Status cause;
  Duration pause = kFirstPause;
  transport::ShortageTimer timer;
  while (true) {
    Result<FileDescriptor> fd = attempt();
    if (fd.ok() || fd.status().code() != StatusCode::system) return fd;
    const Status lasting = timer.judge(find_shortage());
    if (!lasting.ok()) return lasting.with_context("connecting to " + target);
    const TimePoint now = Clock::now();
    // An attempt for which no time was left has not found out why.
    if (cause.ok() || !limit.passed()) cause = fd.status();
    if (limit.passed()) {
      return status_of(StatusCode::timeout, "could not connect to {} within {:.1f} s: {}", target,
                       seconds(now - start), cause.message());
    }
    if (now >= next_reminder) {
      log(LogLevel::warning, "still trying to connect to {} after {:.0f} s: {}", target,
          seconds(now - start), cause.message());
      next_reminder = now + kReminder;
    }
    STRETTO_RETURN_IF_ERROR(limit.look());
    std::this_thread::sleep_for(std::min(pause, limit.deadline().remaining()));
    pause = std::min(2 * pause, kLongestPause);
  }
}

Result<sockaddr_un> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The first byte stays zero: that is what makes the name abstract.
  if (name.empty() || name.size() > sizeof(address.sun_path) - 1) {
    return status_of(StatusCode::invalid_argument,
                     "the name of a Unix socket has 1 to {} bytes, not {}",
                     sizeof(address.sun_path) - 1, name.size());
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return address;
}

socklen_t abstract_length(const std::string& name) {
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace

Result<FileDescriptor> listen_tcp(const std::string& host, int port, const WaitLimit& limit) {
  return listen_tcp(host, {port, port}, limit);
}

Result<FileDescriptor> listen_tcp(const std::string& host, const PortRange& ports,
                                  const WaitLimit& limit) {
  for (int port = ports.first;; ++port) {
    STRETTO_ASSIGN_OR_RETURN(const Addresses addresses, resolve(host, port, limit));
    const addrinfo& first = *addresses;
    Result<FileDescriptor> fd = open_socket(first.ai_family);
    if (!fd.ok()) return fd;
    // A launcher that starts again at once must get its port although old connections still linger.
    const int on = 1;
    (void)::setsockopt(fd->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    // "::" takes IPv4 as well, whatever net.ipv6.bindv6only says. Fails on sockets of IPv4.
    const int off = 0;
    (void)::setsockopt(fd->get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (::bind(fd->get(), first.ai_addr, first.ai_addrlen) == 0 &&
        ::listen(fd->get(), SOMAXCONN) == 0) {
      return fd;
    }
    const int error = errno;
    if (error == EADDRINUSE && port < ports.last) continue;
    const Status status = system_status("binding " + describe(first), error);
    if (error == EADDRNOTAVAIL) return status.with_context("this host has no such address");
    if (error != EADDRINUSE || ports.first == ports.last) return status;
    return status.with_context(
        fmt::format("no port from {} to {} is free", ports.first, ports.last));
  }
}

Result<FileDescriptor> connect_tcp(const std::string& host, int port, const WaitLimit& limit) {
  return retry(format_host_port(host, port), limit, [&] { return connect_any(host, port, limit); });
}

Result<FileDescriptor> listen_unix_abstract(const std::string& name) {
  STRETTO_ASSIGN_OR_RETURN(const sockaddr_un address, abstract_address(name));
  Result<FileDescriptor> fd = open_socket(AF_UNIX);
  if (!fd.ok()) return fd;
  if (::bind(fd->get(), reinterpret_cast<const sockaddr*>(&address), abstract_length(name)) != 0) {
    return system_status("binding the Unix socket @" + name);
  }
  if (::listen(fd->get(), SOMAXCONN) != 0) return system_status("listening on @" + name);
  return fd;
}

Result<FileDescriptor> connect_unix_abstract(const std::string& name, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const sockaddr_un address, abstract_address(name));
  return retry("the Unix socket @" + name, limit, [&] {
    return connect_once(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), abstract_length(name),
                        limit);
  });
}

Result<FileDescriptor> accept(int listener, const WaitLimit& limit) {
  while (true) {
    FileDescriptor fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      set_up_tcp(fd.get());
      return fd;
    }
    // A connection that was given up while it waited is no concern of the listener.
    if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
    const int error = errno;
    // The kernel looks for a free descriptor before it looks for a connection: a lack of one is
    // told also where nobody waits, and concerns nobody then.
    if (!would_block(error) && is_readable(listener)) return system_status("accept", error);
    STRETTO_RETURN_IF_ERROR(wait_for(listener, POLLIN, limit));
  }
}

Result<int> local_port(int fd) {
  STRETTO_ASSIGN_OR_RETURN(const SocketAddress address, local_address(fd));
  return port_of(address);
}

Result<std::string> local_host(int fd) {
  STRETTO_ASSIGN_OR_RETURN(const SocketAddress address, local_address(fd));
  return numeric_host(address);
}

Result<std::string> peer_host(int fd) {
  SocketAddress address;
  if (::getpeername(fd, address.get(), &address.length) != 0) return system_status("getpeername");
  unmap(address.storage);
  return numeric_host(address);
}

std::string peer_name(int fd) {
  SocketAddress address;
  if (::getpeername(fd, address.get(), &address.length) != 0) return "a peer that has gone";
  if (address.storage.ss_family == AF_UNIX) return "a process of this host";
  unmap(address.storage);
  return format_host_port(numeric_host(address), port_of(address));
}

void unmap(sockaddr_storage& address) {
  const auto v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (address.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = v6.sin6_port;
  std::memcpy(&v4.sin_addr, v6.sin6_addr.s6_addr + 12, sizeof(v4.sin_addr));
  std::memcpy(&address, &v4, sizeof(v4));
}

Status wait_for(int fd, short events, const WaitLimit& limit) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, poll_milliseconds(limit.nap()));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return system_status("poll");
    if (limit.passed()) return status_of(StatusCode::timeout, "the deadline passed");
    STRETTO_RETURN_IF_ERROR(limit.look());
  }
}

Status read_exactly(int fd, ByteSpan bytes, const WaitLimit& limit) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    if (limit.passed()) {
      return status_of(StatusCode::timeout, "only {} of {} bytes came before the deadline", done,
                       bytes.size());
    }
    const ssize_t count = ::recv(fd, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT);
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (count == 0 || errno == ECONNRESET) {
      return status_of(StatusCode::peer_lost, "the connection ended after {} of {} bytes", done,
                       bytes.size());
    } else if (would_block(errno)) {
      const Status waited = wait_for(fd, POLLIN, limit);
      if (!waited.ok() && !limit.passed()) return waited;
    } else if (errno != EINTR) {
      return connection_status("recv");
    }
  }
  return {};
}

Status write_all(int fd, ConstByteSpan bytes, const WaitLimit& limit) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    if (limit.passed()) {
      return status_of(StatusCode::timeout, "only {} of {} bytes could be sent before the deadline",
                       done, bytes.size());
    }
    const ssize_t count =
        ::send(fd, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno == ECONNRESET || errno == EPIPE) {
      return status_of(StatusCode::peer_lost, "the connection ended after {} of {} bytes were sent",
                       done, bytes.size());
    } else if (would_block(errno)) {
      const Status waited = wait_for(fd, POLLOUT, limit);
      if (!waited.ok() && !limit.passed()) return waited;
    } else if (errno != EINTR) {
      return connection_status("send");
    }
  }
  return {};
}

Result<HostPort> parse_host_port(std::string_view text) {
  const auto bad = [&] {
    return status_of(StatusCode::invalid_argument,
                     "\"{}\" is no address: want host:port, [::1]:port for IPv6", text);
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad();
  std::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    return bad();
  }
  const std::string_view digits = text.substr(colon + 1);
  const std::optional<int> port = parse_number<int>(digits);
  if (host.empty() || !port || *port < 1 || *port > 65535) return bad();
  return HostPort{std::string(host), *port};
}

Result<PortRange> parse_port_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  const std::optional<int> first = parse_number<int>(text.substr(0, dash));
  const std::optional<int> last =
      dash == std::string_view::npos ? first : parse_number<int>(text.substr(dash + 1));
  if (first && last && *first >= 1 && *first <= *last && *last <= 65535) {
    return PortRange{*first, *last};
  }
  return status_of(StatusCode::invalid_argument,
                   "\"{}\" is no range of ports: want 29700-29731, or one port", text);
}

std::string format_host_port(std::string_view host, int port) {
  const bool ipv6 = host.find(':') != std::string_view::npos;
  return ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace stretto::bootstrap
