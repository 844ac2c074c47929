// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <vector>

#include "stretto/transport/frame.h"
#include "stretto/transport/link.h"

namespace stretto::transport {

// Cuts what comes by a link into frames. Not thread safe.
class FrameReader {
 public:
  // What is done with frames. After a failure, nothing more is read.
  class Sink {
   public:
    // A header has come. Returns where its payload goes; what finds no room there is dropped.
    virtual Result<ByteSpan> begin(const Frame& frame) = 0;
    // All of the frame has come.
    virtual Status end(const Frame& frame) = 0;

   protected:
    ~Sink() = default;
  };

  FrameReader();

  // Reads once. Returns whether anything has come; fails as the link or the sink do.
  Result<bool> read_some(Link& link, Sink& sink);
  // The rest of the payload that is coming has nowhere to go any more.
  void drop_payload() { target_ = {}; }

 private:
  Status consume_staged(Sink& sink);
  Status begin_frame(Sink& sink);
  Status end_frame(Sink& sink);

  std::vector<std::byte> staging_;  // What has been read ahead of the frames.
  std::size_t staged_begin_ = 0;
  std::size_t staged_end_ = 0;
  FrameHeader header_{};
  std::size_t header_bytes_ = 0;
  Frame frame_;
  std::uint64_t payload_left_bytes_ = 0;
  ByteSpan target_;  // Where the rest of the payload goes; empty: dropped.
};

}  // namespace stretto::transport
