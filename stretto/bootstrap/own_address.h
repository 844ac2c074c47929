// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/base/wait_limit.h"

// The addresses by which peers reach this host. All are numeric.
namespace stretto::bootstrap {

// The two ends of the kernel's route to `host`. Peers that also reach `host` can connect to this
// host at `own`. Sends nothing. If a name has several addresses, takes the first that has a route.
struct Route {
  std::string own;
  std::string other;
};
Result<Route> route_to(const std::string& host, int port, const WaitLimit& limit);

struct InterfaceAddress {
  std::string interface;
  std::string text;
};
// The addresses of interfaces that are up, without link-local IPv6 addresses; IPv4 before IPv6.
// Loopback addresses are included.
Result<std::vector<InterfaceAddress>> interface_addresses();

// The first address of an interface ("eth1") or in a subnet ("10.0.0.0/8", "fd00::/8"); IPv4 before
// IPv6. Fails with invalid_argument, listing this host's addresses.
Result<std::string> address_in(std::string_view network);

// "10.0.4.7 (eth1)", for messages: the address, and the interface of this host that has it, if
// there is one.
std::string with_interface(const std::string& address);

// The address that a server on this host binds if its clients know it as `host`: `host` itself, or
// any_address() if `host` is a name other than localhost that resolves to a loopback address here.
// Many systems have such a name in /etc/hosts, while it means another address elsewhere. Waits for
// a name that cannot be resolved yet, and says so in the log.
Result<std::string> address_to_bind(const std::string& host, int port, const WaitLimit& limit);

// The address that a socket binds to be reached at all IPv6 and IPv4 addresses of this host: "::",
// or "0.0.0.0" if there is no IPv6.
std::string any_address();

// Whether only this host itself can reach `address`.
bool is_loopback(std::string_view address);
// Whether `address` also names an interface of this host: "fe80::1%eth0".
bool names_interface(std::string_view address);

// The addresses by which others could connect to this host, without loopback; that of the default
// route first. Empty if the system does not tell.
std::vector<std::string> own_addresses();

}  // namespace stretto::bootstrap
