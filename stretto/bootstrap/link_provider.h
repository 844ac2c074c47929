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

// One way to connect two ranks. The mesh tries the ways that both ranks offer, in the order of
// MeshOptions::links. In each pair the higher rank connects, and both prove that they hold the job
// key.
class LinkProvider {
 public:
  virtual ~LinkProvider() = default;

  // "shm", for example. It appears on cards, in keys of the store and in error messages.
  virtual std::string_view name() const = 0;
  // The purpose in the handshakes of its connections.
  virtual Purpose purpose() const = 0;
  // Why two ranks that both offer this way cannot use it, as far as their cards tell; empty: they
  // try it. Both ranks come to the same result.
  virtual std::string why_not(const RankCard& own, const RankCard& peer) const = 0;

  // How many connections this rank wants to each peer. A pair makes the smaller of its two numbers.
  virtual int streams() const { return 1; }

  // The address for listen() at which this rank takes each peer's connection number `stream`.
  virtual Result<std::string> bind_address(Rank self, int stream,
                                           std::span<const RankCard> cards) = 0;
  // A listening socket. It is opened only if other ranks have to connect to this one.
  struct Listener {
    FileDescriptor socket;
    std::string address;  // For connect() of other ranks, which read it in the store.
  };
  virtual Result<Listener> listen(const std::string& bind_address, const WaitLimit& limit) = 0;
  // Whether one rank listens for all ranks of its host, at the addresses that they name, because
  // ports are scarce.
  virtual bool is_shared_by_host() const { return false; }
  virtual Result<FileDescriptor> connect(const std::string& address, const WaitLimit& limit) = 0;

  // Makes links of the connections and stores them in `parts`, with anything else that they bring
  // (shared memory, process handles). `sockets[r]` lead to rank r; it may be empty.
  using Sockets = RankVector<std::vector<FileDescriptor>>;
  virtual Status make_links(transport::Endpoint::Parts& parts, Sockets sockets,
                            const WaitLimit& limit) = 0;
};

}  // namespace stretto::bootstrap
