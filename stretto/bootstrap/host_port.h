// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/status.h"

namespace stretto::bootstrap {

struct HostPort {
  std::string host;
  int port = 0;
};
// "node0:29600", "10.0.0.7:29600", "[fe80::1]:29600". Fails with invalid_argument.
Result<HostPort> parse_host_port(std::string_view text);
// A list of 1 to kPlacesMax of them, separated by commas.
inline constexpr std::size_t kPlacesMax = 8;
Result<std::vector<HostPort>> parse_host_ports(std::string_view text);
// The reverse: brackets around IPv6 addresses.
std::string format_host_port(std::string_view host, int port);

// The first and the last port of a range; equal for one port.
struct PortRange {
  int first = 0;
  int last = 0;

  friend bool operator==(const PortRange&, const PortRange&) = default;
};
// "29600" or "29600-29631". Fails with invalid_argument.
Result<PortRange> parse_port_range(std::string_view text);

}  // namespace stretto::bootstrap
