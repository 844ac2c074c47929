// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/host_name.h"
#include "stretto/base/parse_number.h"
#include "stretto/bootstrap/own_address.h"
#include "stretto/bootstrap/resolve.h"
#include "stretto/bootstrap/socket.h"
#include "tools/doctor/check.h"
#include "tools/launch/options.h"

namespace stretto::tools::doctor {
namespace {

constexpr Duration kLookup = std::chrono::seconds(5);

Check check_host_name() {
  const std::string name = host_name();
  const auto found = bootstrap::resolve(name, 0, Deadline::after(kLookup));
  if (!found.ok()) {
    return warning("host name", std::string(found.status().message()),
                   "on several hosts, name this one by an address, or add it to DNS or /etc/hosts");
  }
  const auto addresses = numeric_addresses(*found.value());
  const std::string seen = fmt::format("{} is {}", name, fmt::join(addresses, ", "));
  if (!std::ranges::all_of(addresses, bootstrap::is_loopback))
    return {"host name", State::ok, seen};
  return warning("host name", seen,
                 "others cannot reach it there: on several hosts, name this one by another address "
                 "(--hosts, MASTER_ADDR), or take the name off that line of /etc/hosts");
}

Check check_interfaces() {
  const auto all = bootstrap::interface_addresses();
  if (!all.ok()) {
    return problem("interfaces", std::string(all.status().message()),
                   "the system does not tell which networks there are");
  }
  std::vector<std::string> texts;
  for (const auto& own : all.value()) {
    const std::string folder = "/sys/class/net/" + own.interface;
    const std::string mtu = line_of(folder + "/mtu");
    const std::string speed = line_of(folder + "/speed");
    texts.push_back(fmt::format(
        "{} {}{}{}", own.interface, own.text, mtu.empty() ? "" : ", MTU " + mtu,
        parse_number<int>(speed).value_or(-1) <= 0 ? "" : fmt::format(", {} Mbit/s", speed)));
  }
  return {"interfaces", State::ok, fmt::format("{}", fmt::join(texts, "; "))};
}

// Chooses an address as bootstrap/tcp_links.cc does, as far as one rank alone can tell.
Check check_own_address(const Result<job::Job>& job) {
  const std::string name = "own address";
  if (job.ok() && !job.value().networks.empty()) {
    std::vector<std::string> chosen;
    for (const std::string& network : job.value().networks) {
      const auto address = bootstrap::address_in(network);
      if (!address.ok()) {
        return problem(name, fmt::format("STRETTO_NETWORK: {}", address.status().message()),
                       "name one of these, or unset STRETTO_NETWORK");
      }
      chosen.push_back(bootstrap::with_interface(address.value()));
    }
    return {name, State::ok, fmt::format("{} from STRETTO_NETWORK", fmt::join(chosen, ", "))};
  }
  if (job.ok() && !job.value().rendezvous.host.empty()) {
    const auto& [store, port] = job.value().rendezvous;
    const auto route = bootstrap::route_to(store, port, Deadline::after(kLookup));
    if (!route.ok()) {
      return problem(name, std::string(route.status().message()),
                     "this host must find the store's: correct the name, or use an address");
    }
    return {name, State::ok,
            fmt::format("{}: from it leads the route to the store on {}",
                        bootstrap::with_interface(route.value().own), store)};
  }
  const auto addresses = bootstrap::own_addresses();
  if (addresses.empty()) {
    return warning(name, "no other host can reach this one: it has loopback addresses only",
                   "for a job on several hosts, bring up a network");
  }
  return {name, State::ok,
          fmt::format("{} has the default route; ranks take that from which the route to the store "
                      "leads, or what STRETTO_NETWORK says",
                      bootstrap::with_interface(addresses.front()))};
}

Check check_ports(const Result<job::Job>& job) {
  const std::string host = bootstrap::any_address();
  std::vector<std::string> failures;
  for (const int port : {launch::kDefaultPort, launch::kDefaultPort + 1}) {
    const auto bound = bootstrap::listen_tcp(host, port);
    if (!bound.ok()) failures.emplace_back(bound.status().message());
  }
  if (job.ok() && job.value().ports.first > 0) {
    const auto bound =
        bootstrap::listen_tcp(host, job.value().ports, Deadline::after(kLookup)).status();
    if (!bound.ok()) {
      return problem("ports", fmt::format("STRETTO_PORTS: {}", bound.message()),
                     "name ports that nobody listens at (ss -tlnp shows who does)");
    }
  }
  if (!failures.empty()) {
    return warning("ports", fmt::format("{}", fmt::join(failures, "; ")),
                   "a job that `stretto run` starts on several hosts meets there: end who listens "
                   "(ss -tlnp), or choose others with --rendezvous HOST:PORT");
  }
  return {"ports", State::ok,
          fmt::format("{} and {} can be bound{}", launch::kDefaultPort, launch::kDefaultPort + 1,
                      job.ok() && job.value().ports.first > 0 ? ", and one of STRETTO_PORTS" : "")};
}

// Returns the last, largest number of "4096 131072 6291456".
std::size_t largest_of(const std::string& text) {
  return parse_number<std::size_t>(text.substr(text.find_last_of(" \t") + 1)).value_or(0);
}

// stretto sets no buffer sizes, so the kernel makes buffers as large as these limits say.
Check check_buffers() {
  const std::size_t to_send = largest_of(line_of("/proc/sys/net/ipv4/tcp_wmem"));
  const std::size_t to_receive = largest_of(line_of("/proc/sys/net/ipv4/tcp_rmem"));
  if (to_send == 0 || to_receive == 0)
    return {"tcp buffers", State::ok, "the kernel does not tell"};
  const std::size_t least = std::min(to_send, to_receive);
  const std::string seen = fmt::format(
      "up to {} KiB to send, {} KiB to receive: 10 Gbit/s for a round trip of {:.1f} ms",
      to_send / 1024, to_receive / 1024, static_cast<double>(least) * 8 / 10e9 * 1e3);
  if (least >= (std::size_t{1} << 20)) return {"tcp buffers", State::ok, seen};
  return warning("tcp buffers", seen,
                 "let the last number of net.ipv4.tcp_wmem and net.ipv4.tcp_rmem be a few MiB");
}

Check check_congestion_control(const Environment& environment) {
  const std::string name = "congestion control";
  const auto wanted = environment.get("STRETTO_CONGESTION_CONTROL");
  const std::string all = line_of("/proc/sys/net/ipv4/tcp_available_congestion_control");
  if (!wanted) {
    return {name, State::ok,
            fmt::format("{}, of {}", line_of("/proc/sys/net/ipv4/tcp_congestion_control"), all)};
  }
  const FileDescriptor probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::setsockopt(probe.get(), IPPROTO_TCP, TCP_CONGESTION, wanted->c_str(),
                   static_cast<socklen_t>(wanted->size())) == 0) {
    return {name, State::ok, *wanted + " from STRETTO_CONGESTION_CONTROL"};
  }
  return problem(name,
                 fmt::format("STRETTO_CONGESTION_CONTROL={}: {}; this host has {}", *wanted,
                             std::strerror(errno), all),
                 "choose one that net.ipv4.tcp_allowed_congestion_control lists");
}

}  // namespace

Checks check_network(const Environment& environment) {
  const Result<job::Job> job = job_of(environment);
  return {check_host_name(), check_interfaces(), check_own_address(job),
          check_ports(job),  check_buffers(),    check_congestion_control(environment)};
}

}  // namespace stretto::tools::doctor
