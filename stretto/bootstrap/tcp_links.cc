// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/tcp_links.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "stretto/bootstrap/resolve.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/transport/tcp/link.h"

namespace stretto::bootstrap {
namespace {

// The local address from which `host` is reached: what peers that also reach it can connect to.
Result<std::string> local_address_towards(const std::string& host, int port,
                                          const WaitLimit& limit) {
  const Result<Addresses> addresses = resolve(host, port, limit);
  if (!addresses.ok()) return addresses.status();
  const addrinfo* found = addresses.value().get();
  const FileDescriptor probe(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Connecting a datagram socket sends nothing; it only asks the kernel for the route.
  if (!probe.valid() || ::connect(probe.get(), found->ai_addr, found->ai_addrlen) != 0) {
    return system_status(fmt::format("finding the way to {}", host));
  }
  return local_host(probe.get());
}

class TcpLinks final : public LinkProvider {
 public:
  explicit TcpLinks(TcpLinkOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return "tcp"; }
  Purpose purpose() const override { return Purpose::mesh_tcp; }
  std::string why_not(const RankCard&, const RankCard&) const override { return {}; }

  Result<Listener> listen(Rank self, std::span<const RankCard> cards,
                          const WaitLimit& limit) override {
    Result<std::string> host = own_address(cards[static_cast<std::size_t>(self)], cards, limit);
    if (!host.ok()) return host.status();
    Result<FileDescriptor> socket = listen_tcp(*host, 0, limit);
    if (!socket.ok()) return socket.status();
    Result<int> port = local_port(socket->get());
    if (!port.ok()) return port.status();
    return Listener{std::move(*socket), format_host_port(*host, *port)};
  }

  Result<FileDescriptor> connect(const std::string& address, const WaitLimit& limit) override {
    const Result<HostPort> to = parse_host_port(address);
    if (!to.ok()) return to.status();
    return connect_tcp(to.value().host, to.value().port, limit);
  }

  Status make_links(transport::Endpoint::Parts& parts, std::vector<FileDescriptor> sockets,
                    const WaitLimit&) override {
    for (std::size_t r = 0; r < sockets.size(); ++r) {
      if (!sockets[r].valid()) continue;
      Result<std::unique_ptr<transport::Link>> link =
          transport::tcp::TcpLink::create(std::move(sockets[r]), options_.network_timeout);
      if (!link.ok()) return link.status();
      parts.links[r] = std::move(*link);
    }
    return {};
  }

 private:
  // Where peers can reach this rank: as it sees the host where all have met, if they have met on
  // one.
  Result<std::string> own_address(const RankCard& own, std::span<const RankCard> cards,
                                  const WaitLimit& limit) const {
    if (!options_.rendezvous_host.empty()) {
      return local_address_towards(options_.rendezvous_host, options_.rendezvous_port, limit);
    }
    const bool one_host = std::ranges::all_of(cards, [&](const RankCard& card) {
      return card.machine == own.machine && card.network == own.network;
    });
    if (one_host) return std::string("127.0.0.1");
    // An address that nobody has (RFC 5737) is reached through the network that leads everywhere.
    Result<std::string> host = local_address_towards("192.0.2.1", 9, limit);
    if (host.ok()) return host;
    return host.status().with_context(
        "the ranks are on several hosts, and a file does not say by which network they reach each "
        "other; let them meet at tcp://HOST:PORT instead");
  }

  TcpLinkOptions options_;
};

}  // namespace

std::shared_ptr<LinkProvider> tcp_links(TcpLinkOptions options) {
  return std::make_shared<TcpLinks>(std::move(options));
}

}  // namespace stretto::bootstrap
