// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/rank_card.h"
#include "stretto/transport/endpoint.h"

namespace stretto::bootstrap {

// One way to connect two ranks. The mesh tries the ways that both ranks offer in the order of its
// table, which is the same on all ranks; in each pair the higher rank connects, and proves that it
// holds the job key.
class LinkProvider {
 public:
  virtual ~LinkProvider() = default;

  // "shm": on cards, in the keys of the store, and in messages.
  virtual std::string_view name() const = 0;
  // What the handshake of its connections says they are for.
  virtual Purpose purpose() const = 0;
  // Why two ranks that both offer this way cannot use it, as far as their cards tell, from both
  // sides alike; empty: it is tried.
  virtual std::string why_not(const RankCard& own, const RankCard& peer) const = 0;

  // How many connections to a rank this one wants; two ranks have as many as both want.
  virtual int streams() const { return 1; }

  // Where connection number `stream` of those that this rank wants is to arrive; for listen().
  virtual Result<std::string> bind_address(Rank self, int stream,
                                           std::span<const RankCard> cards) = 0;
  // Where others connect to, opened when this rank is to be connected to.
  struct Listener {
    FileDescriptor socket;
    std::string address;  // Told to them through the store; for connect().
  };
  virtual Result<Listener> listen(const std::string& bind_address, const WaitLimit& limit) = 0;
  // Whether one rank listens for all of its host, at the addresses that they name, because ports
  // are scarce.
  virtual bool is_shared_by_host() const { return false; }
  virtual Result<FileDescriptor> connect(const std::string& address, const WaitLimit& limit) = 0;

  // Makes links of connections, and whatever else they bring; `sockets[r]` lead to rank r, or there
  // are none.
  using Sockets = RankVector<std::vector<FileDescriptor>>;
  virtual Status make_links(transport::Endpoint::Parts& parts, Sockets sockets,
                            const WaitLimit& limit) = 0;
};

}  // namespace stretto::bootstrap
