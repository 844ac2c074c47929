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

  PeerPlane& of(Rank peer) override;
  bool progress(UnexpectedQueue& unexpected) override;
  bool must_push() const override { return streams_->must_push(); }

 private:
  class Way;

  std::unique_ptr<PacketStreams> streams_;
  RankVector<std::unique_ptr<Way>> ways_;  // Null at this rank.
};

}  // namespace stretto::transport::packets
