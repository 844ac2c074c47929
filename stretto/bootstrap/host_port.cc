// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/host_port.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/parse_number.h"
#include "stretto/base/printable.h"

namespace stretto::bootstrap {

Result<HostPort> parse_host_port(std::string_view text) {
  // A peer may have written the text, and later messages quote the host.
  const std::string fit = printable(std::string(text));
  const auto bad = [&] {
    return status_of(StatusCode::invalid_argument,
                     "\"{}\" is no address: want host:port, [::1]:port for IPv6", fit);
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text != fit) return bad();
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

Result<std::vector<HostPort>> parse_host_ports(std::string_view text) {
  std::vector<HostPort> places;
  while (true) {
    const std::size_t comma = text.find(',');
    STRETTO_ASSIGN_OR_RETURN(HostPort place, parse_host_port(text.substr(0, comma)));
    if (places.size() == kPlacesMax) {
      return status_of(StatusCode::invalid_argument, "there are more than {} addresses",
                       kPlacesMax);
    }
    places.push_back(std::move(place));
    if (comma == std::string_view::npos) return places;
    text.remove_prefix(comma + 1);
  }
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
