// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/bootstrap/link_provider.h"

namespace stretto::bootstrap {

struct TcpLinkOptions {
  // How long the network to another rank may be silent; zero: as long as the kernel thinks fit.
  Duration network_timeout = Duration::zero();
  // The host and port of the store: the address from which this rank reaches them is the one it
  // listens on, if it must. Empty: the store is no server.
  std::string rendezvous_host = {};
  int rendezvous_port = 0;
};

// TCP, between any ranks.
std::shared_ptr<LinkProvider> tcp_links(TcpLinkOptions options);

}  // namespace stretto::bootstrap
