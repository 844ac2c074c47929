// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <map>
#include <memory>
#include <vector>

#include "stretto/transport/frame.h"
#include "stretto/transport/link.h"
#include "stretto/transport/matcher.h"
#include "stretto/transport/output_queue.h"

namespace stretto::transport {

// All that a rank knows of one other rank: the link, what is on its way out, the parser of what
// comes in, and the matching of the two. Not thread safe.
class Peer {
 public:
  struct Ranks {
    Rank self = 0;
    Rank peer = 0;
    int count = 0;  // Of the job: what a peer says about ranks is checked against it.
  };
  // `listener` is read at each event, so that it may be set later than this.
  Peer(const Ranks& ranks, std::unique_ptr<Link> link, TransportListener* const* listener);

  Link& link() { return *link_; }
  const Link& link() const { return *link_; }
  // Why the peer is lost; ok while it is not.
  const Status& status() const { return status_; }

  void send(Request& request);
  void recv(Request& request);
  void forget(std::uint64_t group, const Status& reason);
  void send_abort(std::uint64_t group, const Status& reason);
  void send_goodbye();

  // Reads and writes what can be moved now. Returns whether anything was. Not to be called by those
  // who are told of something: the parser is then in the middle of its bytes.
  bool progress();
  // Only writes; anyone may call it at any time. A failure shows in the next progress().
  void flush();
  bool has_output() const { return !output_.empty(); }

  const Matcher& matcher() const { return matcher_; }

 private:
  bool read_some();
  std::size_t consume(ConstByteSpan bytes);
  Status begin_frame(const Frame& frame);
  void end_frame();
  void receive_abort();
  bool forgotten(const Frame& frame) const;
  // Ends everything that concerns this peer; told to the listener once.
  void lose(const Status& reason);

  Ranks ranks_;
  std::unique_ptr<Link> link_;
  TransportListener* const* listener_;
  Status status_;
  OutputQueue output_;
  Matcher matcher_;
  std::map<std::uint64_t, Status> forgotten_;  // Groups given up, and why.

  // The parser: header bytes, then payload bytes into `target_` (or nowhere).
  std::vector<std::byte> staging_;  // What has been read ahead of the parser.
  std::size_t staged_begin_ = 0;
  std::size_t staged_end_ = 0;
  FrameHeader header_{};
  std::size_t header_bytes_ = 0;
  Frame frame_;
  std::uint64_t payload_left_bytes_ = 0;
  ByteSpan target_;                         // Where the rest of the payload goes; empty: dropped.
  Request* target_request_ = nullptr;       // Done when the payload is complete.
  Matcher::Early* target_early_ = nullptr;  // Or this.
  bool dropping_ = false;                   // Whether the frame belongs to a forgotten group.
  std::vector<std::byte> abort_text_;
  bool said_goodbye_ = false;
};

}  // namespace stretto::transport
