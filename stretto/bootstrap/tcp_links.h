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
  // How long the network to another rank may be silent; zero: the kernel's own limits hold.
  Duration network_timeout = Duration::zero();
  // The interfaces or subnets (own_address.h) in which the ranks of a host listen, if they must.
  // Stream s of the host's r-th rank (both counted from 0) uses number r + s, modulo their count.
  // Empty: the address by which this rank reaches the store; if the store is on this host, the
  // address by which other hosts reach the store; if that is unknown, all addresses of this host.
  std::vector<std::string> networks = {};
  // Another library's setting that names a network, if `networks` is empty:
  // "GLOO_SOCKET_IFNAME=eth1". If the job has several hosts, a warning says that stretto does not
  // read it.
  std::string foreign_network = {};
  PortRange ports = {};  // The ports to listen on.
  int streams = 1;       // Connections between two ranks that both want this many.
  // Of every connection (TCP_CONGESTION), for example "cubic". Empty: the system's default for the
  // route.
  std::string congestion_control = {};
  // The job key. If set, links are encrypted (tls_stream.h), and the provider's name is "tls"
  // instead of "tcp".
  std::optional<JobKey> tls_key = {};
};

// TCP, between any ranks.
std::shared_ptr<LinkProvider> tcp_links(TcpLinkOptions options);

}  // namespace stretto::bootstrap
