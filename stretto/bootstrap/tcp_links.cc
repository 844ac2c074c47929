// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/tcp_links.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/bootstrap/own_address.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/tls_stream.h"
#include "stretto/transport/tcp/striped_link.h"

namespace stretto::bootstrap {
namespace {

using transport::tcp::ByteStream;
using transport::tcp::SocketStream;
using transport::tcp::StripedLink;
using transport::tcp::TcpLink;

class TcpLinks final : public LinkProvider {
 public:
  explicit TcpLinks(TcpLinkOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return options_.tls_key ? "tls" : "tcp"; }
  Purpose purpose() const override { return Purpose::mesh_tcp; }
  std::string why_not(const RankCard&, const RankCard&) const override { return {}; }

  int streams() const override { return options_.streams; }

  // The address at which this rank is to be reached.
  Result<std::string> bind_address(Rank self, int stream,
                                   std::span<const RankCard> cards) override {
    STRETTO_ASSIGN_OR_RETURN(const OwnAddress own,
                             own_address(cards[static_cast<std::size_t>(self)], stream, cards));
    log(LogLevel::info, "other ranks reach this one at {}: {}", with_interface(own.text), own.why);
    return own.text;
  }

  bool is_shared_by_host() const override { return true; }

  // Uses the same port in all networks, if it is free there.
  Result<Listener> listen(const std::string& host, const WaitLimit& limit) override {
    const int used = port_;
    Result<FileDescriptor> socket =
        listen_tcp(host, used > 0 ? PortRange{used, used} : options_.ports, limit);
    if (!socket.ok() && used > 0) socket = listen_tcp(host, options_.ports, limit);
    if (!socket.ok()) {
      return options_.ports.first > 0 ? socket.status().with_context("STRETTO_PORTS")
                                      : socket.status();
    }
    STRETTO_ASSIGN_OR_RETURN(const int port, local_port(socket->get()));
    port_ = port;
    return Listener{std::move(*socket), places_of(host, port)};
  }

  Result<FileDescriptor> connect(const std::string& address, const WaitLimit& limit) override {
    STRETTO_ASSIGN_OR_RETURN(std::vector<HostPort> places, parse_host_ports(address));
    const std::vector<HostPort> all = places;
    // The hosts of a job are mostly alike: first try the position in the list that has led to
    // another host.
    const auto first = static_cast<std::ptrdiff_t>(std::min(leading_, places.size() - 1));
    std::rotate(places.begin(), places.begin() + first, places.begin() + first + 1);
    // Skips addresses that this host has, too, such as docker0's: they do not lead to another host.
    if (places.size() > 1) {
      const std::vector<std::string> own = own_addresses();
      std::erase_if(places,
                    [&](const HostPort& place) { return std::ranges::count(own, place.host) > 0; });
      if (places.empty()) places = all;
    }
    STRETTO_ASSIGN_OR_RETURN(FileDescriptor connection, connect_tcp(places, limit));
    const Result<std::string> reached = peer_host(connection.get());
    const auto found = std::ranges::find(all, reached.ok() ? reached.value() : "", &HostPort::host);
    if (found != all.end()) leading_ = static_cast<std::size_t>(found - all.begin());
    return connection;
  }

  Status make_links(transport::Endpoint::Parts& parts, Sockets sockets,
                    const WaitLimit& limit) override {
    STRETTO_ASSIGN_OR_RETURN(auto streams, make_streams(parts.rank, std::move(sockets), limit));
    for (std::size_t r = 0; r < streams.size(); ++r) {
      if (streams[r].empty()) continue;
      std::vector<std::unique_ptr<TcpLink>> links;
      for (std::unique_ptr<ByteStream>& stream : streams[r]) {
        STRETTO_RETURN_IF_ERROR(control_congestion(stream->socket()));
        links.push_back(std::make_unique<TcpLink>(std::move(stream), options_.network_timeout));
      }
      if (links.size() == 1) {
        parts.links[r] = std::move(links.front());
        continue;
      }
      STRETTO_ASSIGN_OR_RETURN(parts.links[r], StripedLink::create(std::move(links)));
    }
    return {};
  }

 private:
  // `host` with the port, or all addresses of this host if `host` stands for all.
  static std::string places_of(const std::string& host, int port) {
    if (host != "::" && host != "0.0.0.0") return format_host_port(host, port);
    std::string places;
    const std::vector<std::string> own = own_addresses();
    for (std::size_t i = 0; i < std::min(own.size(), kPlacesMax); ++i) {
      places += (i == 0 ? "" : ",") + format_host_port(own[i], port);
    }
    return places;
  }

  using Streams = std::vector<std::vector<std::unique_ptr<ByteStream>>>;

  Result<Streams> make_streams(Rank self, Sockets sockets, const WaitLimit& limit) const {
    Streams streams(sockets.size());
    std::vector<TlsStream*> encrypted;
    for (std::size_t r = 0; r < sockets.size(); ++r) {
      for (FileDescriptor& socket : sockets[r]) {
        if (!options_.tls_key) {
          streams[r].push_back(std::make_unique<SocketStream>(std::move(socket)));
          continue;
        }
        STRETTO_ASSIGN_OR_RETURN(
            auto stream, TlsStream::create(std::move(socket), {.key = *options_.tls_key,
                                                               .self = self,
                                                               .peer = static_cast<int>(r)}));
        encrypted.push_back(stream.get());
        streams[r].push_back(std::move(stream));
      }
    }
    STRETTO_RETURN_IF_ERROR(finish_handshakes(encrypted, limit));
    return streams;
  }

  struct OwnAddress {
    std::string text;
    std::string why;
  };

  // The address at which peers can reach this rank: in the given networks; or as the ranks' routes
  // to the store show; or else all addresses, which the peers then try.
  Result<OwnAddress> own_address(const RankCard& own, int stream, std::span<const RankCard> cards) {
    const auto on_this_host = [&](const RankCard& card) {
      return card.machine == own.machine && card.network == own.network;
    };
    if (!options_.networks.empty()) {
      const auto turn = std::ranges::count_if(&cards.front(), &own, on_this_host) + stream;
      const std::string& network =
          options_.networks[static_cast<std::size_t>(turn) % options_.networks.size()];
      Result<std::string> address = address_in(network);
      if (!address.ok()) return address.status().with_context("STRETTO_NETWORK");
      return OwnAddress{*address, fmt::format("{} from STRETTO_NETWORK", network)};
    }
    const bool one_host = std::ranges::all_of(cards, on_this_host);
    if (!one_host) warn_of_foreign_network();
    const OwnAddress of_route{own.address, "from it leads its route to the store"};
    const bool is_for_this_host = is_loopback(own.address) || names_interface(own.address);
    if (!own.address.empty() && (one_host || !is_for_this_host)) {
      return of_route;
    }
    if (one_host) return OwnAddress{"127.0.0.1", "all ranks are on this host"};
    // The store is on this host, and on many systems the host's own name leads to a loopback
    // address.
    const std::vector<std::string> addresses = own_addresses();
    const auto reached = std::ranges::find_if(cards, [&](const RankCard& card) {
      return !on_this_host(card) && std::ranges::count(addresses, card.store) > 0;
    });
    if (reached != cards.end()) {
      return OwnAddress{reached->store, "other hosts' route to the store leads to it"};
    }
    if (!addresses.empty()) {
      return OwnAddress{any_address(), "all addresses of this host, for nothing tells which"};
    }
    // Other hosts may have an interface with the same name.
    if (names_interface(own.address)) return of_route;
    return status_of(
        StatusCode::system,
        "the ranks are on several hosts, and this one has no address by which others could reach "
        "it; bring up a network, or name one in STRETTO_NETWORK");
  }

  // Warns once.
  void warn_of_foreign_network() {
    const std::string foreign = std::exchange(options_.foreign_network, {});
    if (foreign.empty()) return;
    log(LogLevel::warning,
        "{} is not read by stretto: set STRETTO_NETWORK to the interface or subnet (eth1, "
        "10.0.0.0/8) by which ranks shall reach each other",
        foreign);
  }

  // Sets the congestion control for what this end sends.
  Status control_congestion(int socket) const {
    const std::string& name = options_.congestion_control;
    if (name.empty() || ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.c_str(),
                                     static_cast<socklen_t>(name.size())) == 0) {
      return {};
    }
    return system_status(fmt::format("STRETTO_CONGESTION_CONTROL={}", name))
        .with_context(
            "net.ipv4.tcp_available_congestion_control lists what this host has, and "
            "net.ipv4.tcp_allowed_congestion_control what needs no CAP_NET_ADMIN");
  }

  TcpLinkOptions options_;
  std::atomic<int> port_ = 0;  // The port that listen() has bound last; 0: none.
  std::size_t leading_ = 0;    // Position of the address that connect() has reached last.
};

}  // namespace

std::shared_ptr<LinkProvider> tcp_links(TcpLinkOptions options) {
  return std::make_shared<TcpLinks>(std::move(options));
}

}  // namespace stretto::bootstrap
