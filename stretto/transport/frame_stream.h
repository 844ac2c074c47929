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

// A link as a stream of frames: an OutputQueue writes them, a FrameReader reads them.

// Frames on their way into a link, in order. Not thread safe.
class OutputQueue {
 public:
  // Adds a frame that carries no bytes of a request. Copies its payload, if any.
  void push(const Frame& frame, ConstByteSpan payload = {});
  // Adds a frame that carries `request.outgoing`. The request ends when all of it is in the link.
  // If it goes in pieces, frames that are pushed later may go between them, except other pieces.
  void push(const Frame& frame, Request& request);

  bool empty() const { return queue_.empty(); }
  // Bytes that have gone into the link so far.
  std::uint64_t written_bytes() const { return written_bytes_; }
  // The number of reports in the queue.
  int reports() const { return reports_; }

  // Writes what the link takes, up to a limit per call. Ends requests whose bytes are all in the
  // link. Returns whether anything moved.
  Result<bool> flush(Link& link);

  // Forgets the requests of `group`, which end with `reason`. Drops frames that have not begun,
  // pieces included. Copies the rest of a frame that is partly sent or held by the link, since the
  // stream must stay whole. Returns the cost of the dropped messages (unexpected_cost_bytes()).
  std::uint64_t forget(std::uint64_t group, const Status& reason);
  // Drops everything, since the link has ended. The requests end with `reason`.
  void clear(const Status& reason);

 private:
  struct Output {
    FrameKind kind = FrameKind::message;
    FrameHeader header{};
    ConstByteSpan payload;
    std::vector<std::byte> owned;             // Holds `payload` if no request does.
    std::optional<std::uint64_t> group = {};  // Of the request whose frame this is, if any.
    Request* request = nullptr;               // Ends when all of this is in the link.
    std::size_t sent_bytes = 0;
    bool dropped = false;

    std::size_t total_bytes() const { return dropped ? 0 : header.size() + payload.size(); }
  };
  // A message that has begun and whose pieces are not all in the queue.
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
  int pieces_ = 0;  // In queue_; not 0 unless begun_ is empty.
  std::uint64_t written_bytes_ = 0;
  std::size_t held_bytes_ = 0;  // Link::held_bytes(), after the last write.
  int reports_ = 0;
};

// Cuts the bytes that come by a link into frames. Not thread safe.
class FrameReader {
 public:
  // Handles the frames. After one of its functions fails, the caller reads nothing more.
  class Sink {
   public:
    // A header has come. Returns where its payload goes; bytes that do not fit there are dropped.
    virtual Result<ByteSpan> begin(const Frame& frame) = 0;
    // All of the frame has come.
    virtual Status end(const Frame& frame) = 0;

   protected:
    ~Sink() = default;
  };

  // Reads once. Returns whether anything has come; fails as the link or the sink do.
  Result<bool> read_some(Link& link, Sink& sink);
  // Whether part of a frame's payload is still to come.
  bool is_within_payload() const { return payload_left_bytes_ > 0; }
  // Drops the rest of the payload that is coming.
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
