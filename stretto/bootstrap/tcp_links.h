// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/link_provider.h"
#include "stretto/bootstrap/socket.h"

namespace stretto::bootstrap {

struct TcpLinkOptions {
  // How long the network to another rank may be silent; zero: as long as the kernel thinks fit.
  Duration network_timeout = Duration::zero();
  // The interfaces or subnets (own_address.h) in which the ranks of a host listen, if they must:
  // the first rank's first stream in the first, its second in the second, the second rank's first
  // in the second, and so on in turns. Empty: that by which this rank and the store reach each
  // other, or, if that is on this host, by which other hosts reach it; where nothing tells, all
  // addresses of this host.
  std::vector<std::string> networks = {};
  // What names the network for other libraries, if `networks` is empty: "GLOO_SOCKET_IFNAME=eth1".
  // Where networks matter, a warning says that it is not read.
  std::string foreign_network = {};
  PortRange ports = {};  // To listen on.
  int streams = 1;       // Between two ranks that both want so many.
  // Of every connection (TCP_CONGESTION), "cubic" say. Empty: as the system's routes have it.
  std::string congestion_control = {};
  // Of the job: then the links are encrypted (tls_stream.h), and are another way than without.
  std::optional<JobKey> tls_key = {};
};

// TCP, between any ranks.
std::shared_ptr<LinkProvider> tcp_links(TcpLinkOptions options);

}  // namespace stretto::bootstrap
