// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <vector>

#include "stretto/base/ring_queue.h"
#include "stretto/transport/frame.h"
#include "stretto/transport/link.h"
#include "stretto/transport/transport.h"

namespace stretto::transport {

// A link as a stream of frames: OutputQueue, what goes into it, and FrameReader, what comes out.

// Frames on their way into a link, in order. Not thread safe.
class OutputQueue {
 public:
  // A frame without bytes of a request: its payload, if any, is copied.
  void push(const Frame& frame, ConstByteSpan payload = {});
  // A frame that carries request.outgoing; the request is done once all of it is in the link. What
  // goes in pieces lets what is pushed later go between them, except for other pieces.
  void push(const Frame& frame, Request& request);

  bool empty() const { return queue_.empty(); }
  // Bytes that have gone into the link so far.
  std::uint64_t written_bytes() const { return written_bytes_; }
  // Reports that still have to go.
  int reports() const { return reports_; }

  // Writes what the link takes, for a while. Returns whether anything moved; ends requests.
  Result<bool> flush(Link& link);

  // Forgets the requests of `group`: frames not begun are dropped, pieces among them, the rest of a
  // frame that is half sent, or held by the link, is copied, for the stream must stay whole. The
  // requests end with `reason`. Returns what the dropped messages would have counted for at the
  // receiver.
  std::uint64_t forget(std::uint64_t group, const Status& reason);
  // Drops everything: the link is no more. The requests end with `reason`.
  void clear(const Status& reason);

 private:
  struct Output {
    FrameKind kind = FrameKind::message;
    FrameHeader header{};
    ConstByteSpan payload;
    std::vector<std::byte> owned;             // Holds `payload` where no request does.
    std::optional<std::uint64_t> group = {};  // Of the request whose frame it is, if it is one's.
    Request* request = nullptr;               // Is done when all of this is in the link.
    std::size_t sent_bytes = 0;
    bool dropped = false;

    std::size_t total_bytes() const { return dropped ? 0 : header.size() + payload.size(); }
  };
  // A message that has begun, and of which not all pieces are in the queue.
  struct Begun {
    Request* request = nullptr;
    std::size_t left_bytes = 0;
  };
  static constexpr std::size_t kSpans = 16;

  void push_pieces();
  std::size_t gather(std::span<ConstByteSpan> spans);
  void advance(std::size_t bytes);
  void pop();

  RingQueue<Output> queue_;
  std::vector<Begun> begun_;
  int pieces_ = 0;  // In queue_: there are some if begun_ has any.
  std::uint64_t written_bytes_ = 0;
  std::size_t held_bytes_ = 0;  // By the link.
  int reports_ = 0;
};

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

  // Reads once. Returns whether anything has come; fails as the link or the sink do.
  Result<bool> read_some(Link& link, Sink& sink);
  // Whether a frame has begun to come and not ended.
  bool is_within_payload() const { return payload_left_bytes_ > 0; }
  // The rest of the payload that is coming has nowhere to go any more.
  void drop_payload() { target_ = {}; }

 private:
  Status consume(ConstByteSpan& bytes, Sink& sink);
  Status end_frame(Sink& sink);

  FrameHeader header_{};
  std::size_t header_bytes_ = 0;
  Frame frame_;
  std::uint64_t payload_left_bytes_ = 0;
  ByteSpan target_;  // Where the rest of the payload goes; empty: dropped.
};

}  // namespace stretto::transport
