// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/bootstrap/handshake_machine.h"
#include "stretto/bootstrap/own_address.h"
#include "stretto/bootstrap/resolve.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/torch_store.h"
#include "tools/doctor/check.h"

namespace stretto::tools::doctor {
namespace {

constexpr Duration kConnectTime = std::chrono::seconds(5);
// How long a server has to say who it is, once connected.
constexpr Duration kAnswerTime = std::chrono::seconds(1);

// Tries once, unlike bootstrap's connect_tcp(), which waits for late peers. Returns an error
// number.
int connect_to(const addrinfo& entry, FileDescriptor& connection) {
  connection =
      FileDescriptor(::socket(entry.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!connection.valid()) return errno;
  if (::connect(connection.get(), entry.ai_addr, entry.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  const Deadline deadline = Deadline::after(kConnectTime);
  if (!bootstrap::wait_for(connection.get(), POLLOUT, deadline).ok()) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

std::string meaning_of(int error) {
  switch (error) {
    case ECONNREFUSED:
      return "that host answers, but nobody listens there: has the launcher, or rank 0, started, "
             "and is that its port? Or a firewall rejects it";
    case ETIMEDOUT:
      return "nothing comes back: a firewall drops what is sent there (let the port through), or "
             "the host is down or another one's address";
    case ENETUNREACH:
    case EHOSTUNREACH:
      return "no network leads there: see with `ip route get` which way it should go";
    default:
      return "see what the system says";
  }
}

// Tries each address of the name once, and keeps the first connection.
Check check_connection(const addrinfo& first, int port, FileDescriptor& connection) {
  std::string seen;
  int last = 0;
  for (const addrinfo* entry = &first; entry != nullptr; entry = entry->ai_next) {
    const TimePoint start = Clock::now();
    last = connect_to(*entry, connection);
    const std::string place =
        bootstrap::format_host_port(bootstrap::numeric_host(*entry->ai_addr), port);
    seen += fmt::format("{}{}: {} in {:.1f} ms", seen.empty() ? "" : "; ", place,
                        last == 0 ? "connected" : std::strerror(last),
                        seconds(Clock::now() - start) * 1e3);
    if (last == 0) return {"connection", State::ok, seen};
  }
  connection.reset();
  return problem("connection", seen, meaning_of(last));
}

Check check_server(int fd, const bootstrap::HostPort& place, const Environment& environment) {
  const std::string name = "server";
  const auto text = environment.get("STRETTO_JOB_KEY");
  const auto key = bootstrap::JobKey::parse(text.value_or(std::string(64, '0')));
  if (!key.ok()) {
    return problem(name, fmt::format("STRETTO_JOB_KEY: {}", key.status().message()),
                   "copy the key once more");
  }
  // Asks a stretto server to identify itself, with this key, as a client that is no rank.
  auto machine = bootstrap::HandshakeMachine::start(bootstrap::HandshakeRole::client, key.value(),
                                                    bootstrap::Purpose::store, {});
  const Status greeted =
      machine.ok() ? bootstrap::shake_hands(fd, machine.value(), Deadline::after(kAnswerTime))
                   : machine.status();
  if (machine.ok() && machine->introduced()) {
    const bootstrap::Identity& peer = machine->peer();
    const std::string seen =
        fmt::format("{} of stretto {}, protocol {}",
                    peer.rank < 0 ? "the launcher" : fmt::format("rank {}", peer.rank), peer.build,
                    peer.protocol_version);
    if (peer.protocol_version != bootstrap::kProtocolVersion) {
      return problem(name, fmt::format("{}; here is {}", seen, bootstrap::kProtocolVersion),
                     "start all ranks with the same version of stretto");
    }
    if (greeted.ok()) {
      return {name, State::ok,
              seen + (text ? ", which takes this job's key" : ", which takes who has no key")};
    }
    if (!text) return {name, State::ok, seen + ", which wants the key in STRETTO_JOB_KEY"};
    return problem(name, fmt::format("{}: {}", seen, greeted.message()),
                   "set STRETTO_JOB_KEY to the key of the job that meets there");
  }
  const auto torch = bootstrap::connect_torch_store({.host = place.host, .port = place.port},
                                                    Deadline::after(kAnswerTime));
  if (torch.ok()) return {name, State::ok, "a TCPStore of PyTorch's"};
  return warning(name, "neither a store of stretto's nor one of PyTorch's answers",
                 "see who listens there (ss -tlnp on that host), and on which port the job meets");
}

}  // namespace

Checks check_way_to(const bootstrap::HostPort& place, const Environment& environment) {
  const Deadline deadline = Deadline::after(kConnectTime);
  const auto found = bootstrap::resolve(place.host, place.port, deadline);
  if (!found.ok()) {
    return {problem("name", std::string(found.status().message()),
                    "this host does not know that name: use an address, or add it to DNS or "
                    "/etc/hosts")};
  }
  const auto addresses = numeric_addresses(*found.value());
  Checks checks{
      {"name", State::ok, fmt::format("{} is {}", place.host, fmt::join(addresses, ", "))}};
  const bool means_itself = std::ranges::all_of(addresses, bootstrap::is_loopback) &&
                            std::ranges::count(addresses, place.host) == 0 &&
                            place.host != "localhost";
  if (means_itself) {
    checks.back() = warning("name", checks.back().seen,
                            "here that name means this host itself: elsewhere it means another");
  }
  const auto route = bootstrap::route_to(place.host, place.port, deadline);
  if (route.ok()) {
    checks.push_back({"route", State::ok,
                      fmt::format("from {} to {}", bootstrap::with_interface(route.value().own),
                                  route.value().other)});
  }
  FileDescriptor connection;
  checks.push_back(check_connection(*found.value(), place.port, connection));
  if (connection.valid()) {
    checks.push_back(check_server(connection.get(), place, environment));
  }
  return checks;
}

}  // namespace stretto::tools::doctor
