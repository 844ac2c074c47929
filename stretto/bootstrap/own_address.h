// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/base/wait_limit.h"

// By which of its addresses peers reach this host. All are numeric.
namespace stretto::bootstrap {

// The two ends of the way to `host`: by `own` peers that also reach it can connect to this one.
// Sends nothing. Of a name that has several addresses: to the first that the kernel knows a way to.
struct Route {
  std::string own;
  std::string other;
};
Result<Route> route_to(const std::string& host, int port, const WaitLimit& limit);

struct InterfaceAddress {
  std::string interface;
  std::string text;
};
// Those that others could connect to: of interfaces that are up, and valid beyond one link; IPv4
// before IPv6. Loopback's are among them.
Result<std::vector<InterfaceAddress>> interface_addresses();

// The first one of an interface ("eth1") or in a subnet ("10.0.0.0/8", "fd00::/8"); IPv4 before
// IPv6. Fails with invalid_argument, naming those that there are.
Result<std::string> address_in(std::string_view network);

// "10.0.4.7 (eth1)", for messages: the address, and this host's interface that has it, if one does.
std::string with_interface(const std::string& address);

// What a server on this host binds whose clients know it by the name or address `host`: that, or
// any_address(), where a name that is not localhost's means a loopback address here, as /etc/hosts
// has it on many systems: elsewhere it means another one. Waits for a name that nobody knows yet,
// and says so in the log.
Result<std::string> address_to_bind(const std::string& host, int port, const WaitLimit& limit);

// What a socket binds to be reached at all addresses of this host, of IPv6 and IPv4 ("::"), or
// "0.0.0.0" where there is no IPv6.
std::string any_address();

// Whether only this host itself gets there.
bool is_loopback(std::string_view address);
// Whether it names an interface of this host, too: "fe80::1%eth0".
bool names_interface(std::string_view address);

// Those by which others could connect to this host, the one of the default route first; none if the
// system does not tell.
std::vector<std::string> own_addresses();

}  // namespace stretto::bootstrap
