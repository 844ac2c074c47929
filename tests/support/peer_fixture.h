// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stretto/transport/peer.h"
#include "tests/support/fake_link.h"
#include "tests/support/held_plane.h"
#include "tests/support/recording_listener.h"

namespace stretto::transport {

// Rank 0 of three ranks, with a fake link to rank 1.
class PeerFixture : public ::testing::Test {
 protected:
  explicit PeerFixture(std::unique_ptr<HeldPlane> plane = nullptr) : plane_(std::move(plane)) {}

  void feed(const Frame& frame, std::size_t payload_bytes = 0, char fill = 'x') {
    link_.feed(encode(frame));
    link_.feed(std::vector<std::byte>(payload_bytes, static_cast<std::byte>(fill)));
  }
  void feed_farewell(std::uint64_t group) {
    feed({.kind = FrameKind::farewell, .key = {.group = group}});
  }
  void progress() {
    while (peer_.progress()) continue;
  }

  FakeLink& link_ = *new FakeLink;  // Owned by `peer_`.
  RecordingListener heard_;
  TransportListener* listener_ = &heard_;
  const std::unique_ptr<HeldPlane> plane_;
  Peer peer_{
      {.self = 0, .peer = 1, .count = 3}, std::unique_ptr<Link>(&link_), &listener_, plane_.get()};
};

}  // namespace stretto::transport
