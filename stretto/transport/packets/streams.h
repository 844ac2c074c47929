// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "stretto/base/rank_vector.h"
#include "stretto/transport/link.h"
#include "stretto/transport/packets/engine.h"

namespace stretto::transport::packets {

// Ordered streams of bytes to all other ranks, cut into packets, which an engine moves. Bytes are
// copied into packets and out of them, so that a caller that gives up a message gets its bytes back
// at once: neither MPI nor UCX gives back what it sends. Packets are reused, so that a network that
// needs registered memory registers each once. Not thread safe; nothing waits.
class PacketStreams {
 public:
  static constexpr std::size_t kPacketsMax = 8;

  // Up to `packets_max` packets are under way to one peer.
  PacketStreams(std::unique_ptr<Engine> engine, Rank self, int ranks,
                std::size_t packets_max = kPacketsMax);
  ~PacketStreams();

  // The stream to a peer; null for this rank itself. It fails when the engine does, or a second
  // after the engine has lost the connection to the peer. Before that, the control plane usually
  // finds that a peer is gone, and disconnect() says so to the stream.
  Link* to(Rank peer);
  // Moves what can be moved now. Returns whether anything moved.
  bool progress();
  // Whether something that was written to a peer that is still there has not reached it.
  bool has_output(Rank peer) const;
  // See DataPlane and PeerPlane.
  bool must_push() const { return must_push_; }
  std::uint64_t arrivals(Rank peer) const;
  bool has_read(Rank peer, std::uint64_t arrivals) const;

 private:
  struct Packet {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t count = 0;
    std::size_t read = 0;
    int operation = 0;
    bool has_ended = false;
  };
  class Stream;

  Status failure() const;
  std::unique_ptr<std::byte[]> take_buffer();
  void give_back(Packet& packet);
  bool take_arrivals();

  std::unique_ptr<Engine> engine_;
  std::size_t packets_max_;
  RankVector<std::unique_ptr<Stream>> streams_;  // Null at this rank.
  std::vector<std::unique_ptr<std::byte[]>> idle_;
  bool must_push_ = false;
  Status protocol_failure_;
};

}  // namespace stretto::transport::packets
