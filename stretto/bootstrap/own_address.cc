// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/own_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/log.h"
#include "stretto/base/parse_number.h"
#include "stretto/bootstrap/resolve.h"
#include "stretto/bootstrap/socket.h"

namespace stretto::bootstrap {
namespace {

// The bytes of an IPv4 or IPv6 address.
using AddressBytes = std::vector<std::uint8_t>;

AddressBytes bytes_of(std::string_view text) {
  const std::string address(text.substr(0, text.find('%')));
  for (const int family : {AF_INET, AF_INET6}) {
    AddressBytes bytes(family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr));
    if (::inet_pton(family, address.c_str(), bytes.data()) == 1) return bytes;
  }
  return {};
}

struct Subnet {
  AddressBytes address;
  int bits = 0;

  bool contains(const AddressBytes& other) const {
    if (other.size() != address.size()) return false;
    for (int bit = 0; bit < bits; ++bit) {
      const auto at = static_cast<std::size_t>(bit / 8);
      if (((address[at] ^ other[at]) & (0x80 >> bit % 8)) != 0) return false;
    }
    return true;
  }
};

std::optional<Subnet> parse_subnet(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::optional<int> bits = parse_number<int>(text.substr(slash + 1));
  Subnet subnet{bytes_of(text.substr(0, slash)), bits.value_or(-1)};
  const auto bits_max = static_cast<int>(8 * subnet.address.size());
  if (subnet.address.empty() || subnet.bits < 0 || subnet.bits > bits_max) return std::nullopt;
  return subnet;
}

}  // namespace

Result<std::vector<InterfaceAddress>> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return system_status("getifaddrs");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(list, ::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
    found.push_back({entry->ifa_name, numeric_host(*entry->ifa_addr)});
  }
  std::ranges::stable_sort(found, {}, [](const InterfaceAddress& own) {
    return own.text.find(':') != std::string::npos;
  });
  return found;
}

Result<Route> route_to(const std::string& host, int port, const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const Addresses addresses, resolve(host, port, limit));
  Status last;
  for (const addrinfo* entry = addresses.get(); entry != nullptr; entry = entry->ai_next) {
    const FileDescriptor probe(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // Connecting a datagram socket sends nothing; it only asks the kernel for the route.
    if (probe.valid() && ::connect(probe.get(), entry->ai_addr, entry->ai_addrlen) == 0) {
      STRETTO_ASSIGN_OR_RETURN(std::string own, local_host(probe.get()));
      STRETTO_ASSIGN_OR_RETURN(std::string other, peer_host(probe.get()));
      return Route{std::move(own), std::move(other)};
    }
    last = system_status(fmt::format("finding the way to {}", host));
  }
  return last;
}

Result<std::string> address_in(std::string_view network) {
  const std::optional<Subnet> subnet = parse_subnet(network);
  STRETTO_ASSIGN_OR_RETURN(const auto addresses, interface_addresses());
  std::string others;
  for (const InterfaceAddress& own : addresses) {
    if (subnet ? subnet->contains(bytes_of(own.text)) : own.interface == network) return own.text;
    others += fmt::format("{}{} {}", others.empty() ? "" : ", ", own.interface, own.text);
  }
  return status_of(
      StatusCode::invalid_argument,
      "\"{}\" is no interface (eth1) or subnet (10.0.0.0/8) in which this host has an address; it "
      "has {}",
      network, others.empty() ? "none" : others);
}

namespace {

// A cluster may publish the name of a host, or of a pod, only after its programs have started.
Result<std::string> address_of_name(const std::string& host, int port, const WaitLimit& limit) {
  constexpr Duration kPause = std::chrono::milliseconds(200);
  bool said = false;
  while (true) {
    const Result<Route> route = route_to(host, port, limit);
    if (route.ok()) return route.value().own;
    if (route.status().code() != StatusCode::system || limit.passed()) return route.status();
    if (!std::exchange(said, true)) {
      log(LogLevel::warning, "{}; trying again until this host's name is known",
          route.status().message());
    }
    STRETTO_RETURN_IF_ERROR(limit.look());
    std::this_thread::sleep_for(std::min(kPause, limit.deadline().remaining()));
  }
}

}  // namespace

Result<std::string> address_to_bind(const std::string& host, int port, const WaitLimit& limit) {
  if (!bytes_of(host).empty() || host.starts_with("localhost")) return host;
  const Result<std::string> own = address_of_name(host, port, limit);
  if (!own.ok()) return own;
  return is_loopback(own.value()) ? any_address() : host;
}

std::string with_interface(const std::string& address) {
  const auto all = interface_addresses();
  if (!all.ok()) return address;
  const auto own = std::ranges::find(all.value(), address, &InterfaceAddress::text);
  return own == all.value().end() ? address : fmt::format("{} ({})", address, own->interface);
}

std::string any_address() {
  const FileDescriptor probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return probe.valid() ? "::" : "0.0.0.0";
}

bool is_loopback(std::string_view address) {
  const AddressBytes bytes = bytes_of(address);
  return Subnet{{127, 0, 0, 0}, 8}.contains(bytes) || Subnet{bytes_of("::1"), 128}.contains(bytes);
}

bool names_interface(std::string_view address) {
  return address.find('%') != std::string_view::npos;
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  const auto addresses = interface_addresses();
  if (!addresses.ok()) return found;
  for (const InterfaceAddress& own : addresses.value()) {
    if (!is_loopback(own.text)) found.push_back(own.text);
  }
  // These documentation addresses (RFC 3849, RFC 5737) exist nowhere, so the default route leads to
  // them.
  for (const char* elsewhere : {"2001:db8::1", "192.0.2.1"}) {
    Result<Route> route = route_to(elsewhere, 9, Deadline());
    if (!route.ok()) continue;
    const auto own = std::ranges::find(found, route->own);
    if (own != found.end()) std::rotate(found.begin(), own, own + 1);
  }
  return found;
}

}  // namespace stretto::bootstrap
