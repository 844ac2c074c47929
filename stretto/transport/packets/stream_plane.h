// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/base/rank_vector.h"
#include "stretto/transport/data_plane.h"
#include "stretto/transport/packets/streams.h"

namespace stretto::transport::packets {

// The data plane whose messages are frames on streams of their own: FrameMessages for each peer.
class StreamPlane final : public DataPlane {
 public:
  // `streams` lead to all `ranks` ranks.
  StreamPlane(Rank self, int ranks, std::unique_ptr<PacketStreams> streams);
  ~StreamPlane() override;

  void send(Request& request) override;
  void recv(Request& request) override;
  bool has_arrived(Rank peer, const MessageKey& key) const override;
  std::optional<UnexpectedMessage> find_conflict(
      Rank peer, std::uint64_t group, std::uint32_t sequence,
      const OperationDescriptor& operation) const override;
  void cancel(Rank peer, std::uint64_t group, const Status& reason) override;
  void close(Rank peer, std::uint64_t group) override;
  std::size_t half_closed(Rank peer) const override;
  void lose(Rank peer, const Status& reason) override;
  bool progress(UnexpectedQueue& unexpected) override;
  bool has_output(Rank peer) const override;
  bool must_push() const override { return streams_->must_push(); }
  std::uint64_t arrivals(Rank peer) const override { return streams_->arrivals(peer); }
  bool has_read(Rank peer, std::uint64_t arrivals) const override;

 private:
  class Way;
  Way& way(Rank peer) const { return *ways_[peer]; }

  std::unique_ptr<PacketStreams> streams_;
  RankVector<std::unique_ptr<Way>> ways_;  // Null at this rank.
};

}  // namespace stretto::transport::packets
