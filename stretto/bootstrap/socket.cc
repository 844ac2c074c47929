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
#include <utility>
#include <vector>

#include "stretto/base/log.h"
#include "stretto/base/poll.h"
#include "stretto/base/printable.h"
#include "stretto/base/would_block.h"
#include "stretto/bootstrap/resolve.h"
#include "stretto/transport/shortage.h"

namespace stretto::bootstrap {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::milliseconds(500);
// kLongestAttempt: how long to wait after the last address was tried before all are tried again.
// kHeadStart: how long each address has before the next one is tried as well, because a firewall
// that drops packets must not keep us from trying the others.
constexpr Duration kLongestAttempt = std::chrono::seconds(5);
constexpr Duration kHeadStart = std::chrono::milliseconds(250);
constexpr Duration kReminder = std::chrono::seconds(15);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

int port_of(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

std::string describe(const sockaddr& address) {
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

// Small messages leave at once, and the loss of a host is noticed in about ten seconds, whether the
// connection is idle or not. All these calls fail on Unix sockets, which do not need them.
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

// Why a connection has ended. Adds what to look at to the system's text.
Status connection_status(std::string_view call) {
  const int error = errno;
  const Status status = system_status(call, error);
  if (error != ETIMEDOUT && error != EHOSTUNREACH && error != ENETUNREACH) return status;
  return status_of(StatusCode::system, "{}: the network to it, or its host, is down",
                   status.message());
}

// On loopback, a client can connect to itself, if its own port happens to be the port it connects
// to.
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

// Starts a connection, which is complete when poll() finds it writable.
Result<FileDescriptor> begin_connect(int family, const sockaddr* address, socklen_t length) {
  Result<FileDescriptor> fd = open_socket(family);
  if (!fd.ok()) return fd;
  if (::connect(fd->get(), address, length) != 0 && errno != EINPROGRESS) {
    return system_status("connect");
  }
  return fd;
}

// Fails with system if the peer is not there (yet).
Status finish_connect(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
    return system_status("getsockopt");
  if (error == 0 && connected_to_itself(fd)) error = ECONNREFUSED;
  if (error != 0) return system_status("connect", error);
  set_up_tcp(fd);
  return {};
}

// Connects to several addresses and takes the first connection that succeeds. The next address is
// tried when all before it have failed, or the last one has not answered for a while (RFC 8305).
class ConnectionRace {
 public:
  // `entries` must outlive it.
  explicit ConnectionRace(std::vector<const addrinfo*> entries) : entries_(std::move(entries)) {}

  Result<FileDescriptor> run(const WaitLimit& whole) {
    const auto others = static_cast<int>(entries_.size()) - 1;
    const WaitLimit limit = whole.within(kLongestAttempt + others * kHeadStart);
    while (true) {
      begin_due();
      if (attempts_.empty()) return last_;
      STRETTO_RETURN_IF_ERROR(poll_until(std::min(limit.nap(), time_until_next())));
      if (FileDescriptor connected = take_connected(); connected.valid()) return connected;
      if (limit.passed()) return timed_out();
      STRETTO_RETURN_IF_ERROR(limit.look());
    }
  }

 private:
  struct Attempt {
    const addrinfo* entry;
    FileDescriptor connection;
    bool has_ended = false;
  };

  static Status at_address(const addrinfo& entry, const Status& status) {
    return status.with_context(describe(*entry.ai_addr));
  }
  Duration time_until_next() const {
    return next_ == entries_.size() ? kLongestAttempt
                                    : std::max(Duration::zero(), next_at_ - Clock::now());
  }
  Status timed_out() const {
    return attempts_.empty()
               ? last_
               : at_address(*attempts_.front().entry, system_status("connect", ETIMEDOUT));
  }
  // Starts the attempts whose turn it is.
  void begin_due() {
    while (next_ < entries_.size() && (attempts_.empty() || Clock::now() >= next_at_)) {
      const addrinfo& entry = *entries_[next_++];
      next_at_ = Clock::now() + kHeadStart;
      Result<FileDescriptor> begun =
          begin_connect(entry.ai_family, entry.ai_addr, entry.ai_addrlen);
      if (begun.ok()) {
        attempts_.push_back({&entry, std::move(*begun)});
      } else {
        last_ = at_address(entry, begun.status());
      }
    }
  }
  Status poll_until(Duration time) {
    std::vector<pollfd> polled;
    for (const Attempt& attempt : attempts_)
      polled.push_back({attempt.connection.get(), POLLOUT, 0});
    const int ready = ::poll(polled.data(), polled.size(), poll_milliseconds(time));
    if (ready < 0 && errno != EINTR) return system_status("poll");
    for (std::size_t i = 0; i < polled.size(); ++i) attempts_[i].has_ended = polled[i].revents != 0;
    return {};
  }
  // Returns a connection that has succeeded, if there is one. Drops failed attempts.
  FileDescriptor take_connected() {
    for (Attempt& attempt : attempts_) {
      if (!attempt.has_ended) continue;
      const Status finished = finish_connect(attempt.connection.get());
      if (finished.ok()) return std::move(attempt.connection);
      last_ = at_address(*attempt.entry, finished);
      next_at_ = Clock::now();
    }
    std::erase_if(attempts_, [](const Attempt& attempt) { return attempt.has_ended; });
    return {};
  }

  std::vector<const addrinfo*> entries_;
  std::size_t next_ = 0;  // Index of the next entry to try.
  TimePoint next_at_;
  std::vector<Attempt> attempts_;
  Status last_;
};

Result<FileDescriptor> connect_any(std::span<const HostPort> places, const WaitLimit& limit) {
  std::vector<Addresses> found;
  std::vector<const addrinfo*> entries;
  Status unknown;
  for (const HostPort& place : places) {
    Result<Addresses> addresses = resolve(place.host, place.port, limit);
    if (!addresses.ok()) {
      unknown = addresses.status();
      continue;
    }
    for (const addrinfo* entry = addresses->get(); entry != nullptr; entry = entry->ai_next) {
      entries.push_back(entry);
    }
    found.push_back(std::move(*addresses));
  }
  if (entries.empty()) return unknown;
  return ConnectionRace(std::move(entries)).run(limit);
}

// Fails if this process cannot open any more descriptors. Then that is the cause, and not the
// server.
Status find_shortage() {
  const FileDescriptor probe(::eventfd(0, EFD_CLOEXEC));
  return probe.valid() ? Status() : system_status("a socket");
}

// Repeats `attempt` until it succeeds, fails with another code than system, or the limit is
// reached.
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
    // Keeps the last cause if an attempt had no time left to find one.
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

Result<SocketAddress> abstract_address(const std::string& name) {
  SocketAddress address;
  auto& unix_address = reinterpret_cast<sockaddr_un&>(address.storage);
  unix_address.sun_family = AF_UNIX;
  // The first byte stays zero: that is what makes the name abstract.
  constexpr std::size_t kNameAt = offsetof(sockaddr_un, sun_path) + 1;
  if (name.empty() || name.size() > sizeof(sockaddr_un) - kNameAt) {
    return status_of(StatusCode::invalid_argument,
                     "the name of a Unix socket has 1 to {} bytes, not {}",
                     sizeof(sockaddr_un) - kNameAt, name.size());
  }
  std::memcpy(unix_address.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(kNameAt + name.size());
  return address;
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
    // A launcher that restarts at once must get its port even if old connections still linger.
    const int on = 1;
    (void)::setsockopt(fd->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    // "::" takes IPv4 as well, whatever net.ipv6.bindv6only says. The call fails on IPv4 sockets.
    const int off = 0;
    (void)::setsockopt(fd->get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (::bind(fd->get(), first.ai_addr, first.ai_addrlen) == 0 &&
        ::listen(fd->get(), SOMAXCONN) == 0) {
      return fd;
    }
    const int error = errno;
    if (error == EADDRINUSE && port < ports.last) continue;
    const Status status = system_status("binding " + describe(*first.ai_addr), error);
    if (error == EADDRNOTAVAIL) return status.with_context("this host has no such address");
    if (error != EADDRINUSE || ports.first == ports.last) return status;
    return status.with_context(
        fmt::format("no port from {} to {} is free", ports.first, ports.last));
  }
}

Result<FileDescriptor> connect_tcp(std::span<const HostPort> places, const WaitLimit& limit) {
  std::string names;
  for (const HostPort& place : places) {
    names += (names.empty() ? "" : " or ") + format_host_port(place.host, place.port);
  }
  return retry(names, limit, [&] { return connect_any(places, limit); });
}

Result<FileDescriptor> connect_tcp(const std::string& host, int port, const WaitLimit& limit) {
  const HostPort place{host, port};
  return connect_tcp({&place, 1}, limit);
}

Result<FileDescriptor> listen_unix_abstract(const std::string& name) {
  STRETTO_ASSIGN_OR_RETURN(const SocketAddress address, abstract_address(name));
  Result<FileDescriptor> fd = open_socket(AF_UNIX);
  if (!fd.ok()) return fd;
  if (::bind(fd->get(), address.get(), address.length) != 0) {
    return system_status("binding the Unix socket @" + name);
  }
  if (::listen(fd->get(), SOMAXCONN) != 0) return system_status("listening on @" + name);
  return fd;
}

Result<FileDescriptor> connect_unix_abstract(const std::string& name, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const SocketAddress address, abstract_address(name));
  // Connecting to a Unix socket succeeds or fails at once.
  return retry("the Unix socket @" + printable(name), limit,
               [&] { return begin_connect(AF_UNIX, address.get(), address.length); });
}

Result<FileDescriptor> accept(int listener, const WaitLimit& limit) {
  while (true) {
    FileDescriptor fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      set_up_tcp(fd.get());
      return fd;
    }
    // Ignores a connection that the client gave up while it waited.
    if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
    const int error = errno;
    // The kernel looks for a free descriptor before it looks for a connection, so it reports a
    // shortage even if no connection waits. Such a shortage does not matter.
    if (!would_block(error) && is_readable(listener)) return system_status("accept", error);
    STRETTO_RETURN_IF_ERROR(wait_for(listener, POLLIN, limit));
  }
}

Result<int> local_port(int fd) {
  STRETTO_ASSIGN_OR_RETURN(const SocketAddress address, local_address(fd));
  return port_of(*address.get());
}

Result<std::string> local_host(int fd) {
  STRETTO_ASSIGN_OR_RETURN(const SocketAddress address, local_address(fd));
  return numeric_host(*address.get());
}

Result<std::string> peer_host(int fd) {
  SocketAddress address;
  if (::getpeername(fd, address.get(), &address.length) != 0) return system_status("getpeername");
  unmap(address.storage);
  return numeric_host(*address.get());
}

std::string peer_name(int fd) {
  SocketAddress address;
  if (::getpeername(fd, address.get(), &address.length) != 0) return "a peer that has gone";
  if (address.storage.ss_family == AF_UNIX) return "a process of this host";
  unmap(address.storage);
  return describe(*address.get());
}

std::string numeric_host(const sockaddr& address) {
  const std::size_t bytes =
      address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char host[NI_MAXHOST];
  if (::getnameinfo(&address, static_cast<socklen_t>(bytes), host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  return host;
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

namespace {

// Moves `bytes` bytes by repeated calls of `call`, which gets the number moved so far. They are
// sent if `events` is POLLOUT, else received.
template <class Call>
Status move_all(int fd, std::size_t bytes, short events, const WaitLimit& limit, const Call& call) {
  const bool sends = events == POLLOUT;
  std::size_t done = 0;
  while (done < bytes) {
    if (limit.passed()) {
      return status_of(StatusCode::timeout, "only {} of {} bytes {} before the deadline", done,
                       bytes, sends ? "could be sent" : "came");
    }
    const ssize_t count = call(done);
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (count == 0 || errno == ECONNRESET || (sends && errno == EPIPE)) {
      return status_of(StatusCode::peer_lost, "the connection ended after {} of {} bytes{}", done,
                       bytes, sends ? " were sent" : "");
    } else if (would_block(errno)) {
      const Status waited = wait_for(fd, events, limit);
      if (!waited.ok() && !limit.passed()) return waited;
    } else {
      return connection_status(sends ? "send" : "recv");
    }
  }
  return {};
}

}  // namespace

Status read_exactly(int fd, ByteSpan bytes, const WaitLimit& limit) {
  return move_all(fd, bytes.size(), POLLIN, limit, [&](std::size_t done) {
    return ::recv(fd, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT);
  });
}

Status write_all(int fd, ConstByteSpan bytes, const WaitLimit& limit) {
  return move_all(fd, bytes.size(), POLLOUT, limit, [&](std::size_t done) {
    return ::send(fd, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
  });
}

}  // namespace stretto::bootstrap
