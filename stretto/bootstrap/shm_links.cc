// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/shm_links.h"

#include "stretto/bootstrap/peer_user.h"
#include "stretto/transport/shm/host.h"

namespace stretto::bootstrap {
namespace {

// Short, because a running rank has its Unix socket open.
constexpr Duration kUnixTime = std::chrono::seconds(5);

class ShmLinks final : public LinkProvider {
 public:
  std::string_view name() const override { return "shm"; }
  Purpose purpose() const override { return Purpose::mesh_unix; }

  std::string why_not(const RankCard& own, const RankCard& peer) const override {
    if (own.machine != peer.machine) return "another machine";
    if (own.network == peer.network) return {};
    return "different network namespaces; run both in one to share memory, which is faster";
  }

  // Empty: listen() makes a name.
  Result<std::string> bind_address(Rank, int, std::span<const RankCard>) override {
    return std::string();
  }

  Result<Listener> listen(const std::string&, const WaitLimit&) override {
    STRETTO_ASSIGN_OR_RETURN(UnixListener listener, listen_to_own_user());
    return Listener{std::move(listener.socket), std::move(listener.name)};
  }

  Result<FileDescriptor> connect(const std::string& address, const WaitLimit& limit) override {
    return connect_to_own_user(address, limit.within(kUnixTime));
  }

  Status make_links(transport::Endpoint::Parts& parts, Sockets sockets,
                    const WaitLimit& limit) override {
    std::vector<FileDescriptor> socket_of(sockets.size());
    for (std::size_t r = 0; r < sockets.size(); ++r) {
      if (!sockets[r].empty()) socket_of[r] = std::move(sockets[r].front());
    }
    STRETTO_ASSIGN_OR_RETURN(auto made,
                             transport::shm::attach(parts.rank, std::move(socket_of), limit));
    parts.memory = std::move(made.memory);
    parts.sleep_flag = std::move(made.sleep_flag);
    for (std::size_t r = 0; r < parts.links.size(); ++r) {
      if (made.links[r] == nullptr) continue;
      parts.links[r] = std::move(made.links[r]);
      parts.processes[r] = std::move(made.processes[r]);
    }
    return {};
  }
};

}  // namespace

std::shared_ptr<LinkProvider> shm_links() { return std::make_shared<ShmLinks>(); }

}  // namespace stretto::bootstrap
