// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <list>
#include <vector>

#include "stretto/transport/data_plane.h"
#include "stretto/transport/frame.h"

namespace stretto::transport {

// Brings together what one peer sends and what this rank has asked for: receives without a message,
// messages without a receive, and large messages that wait for each other. Pure bookkeeping: it
// moves no bytes itself. Not thread safe.
//
// Lists are searched in order: a peer has a handful of messages in flight, seldom more.
class Matcher {
 public:
  // A message that came before its receive.
  struct Unexpected {
    Frame frame;
    std::vector<std::byte>
        bytes;              // Empty for an announced message, whose bytes are still with the peer.
    bool complete = false;  // Whether all bytes are here.
    Request* claimed_by =
        nullptr;            // The receive that takes the bytes as soon as they are complete.
    bool orphaned = false;  // Forgotten while its bytes were still coming.
  };

  // `unexpected_count`: of those that this and the other matchers of a rank keep, for whoever would
  // look through all of them. May be null.
  Matcher(Rank self, Rank peer, std::size_t* unexpected_count = nullptr)
      : self_(self), peer_(peer), unexpected_count_(unexpected_count) {}

  // A receive has been posted. If its message is here, takes it (and ends the request). Returns
  // whether the peer must be told that a large message may come.
  bool post_receive(Request& request);
  // Whether a message with this key waits for a receive: all of it, or with the peer, who has
  // announced it.
  bool has_arrived(const MessageKey& key) const;
  // A header has come. For message and data: the receive whose buffer takes the bytes, or null when
  // `unexpected` (non-null afterwards) or nobody (a mismatch or a forgotten group: drop the bytes)
  // does.
  Request* message_header(const Frame& frame, Unexpected** unexpected);
  Request* data_header(const Frame& frame);
  // A message waits for its receive. Fails with protocol if too many do.
  enum class Announcement {
    unexpected,  // No receive has been posted.
    settled,     // The receive has been announced already, or has just ended with mismatch.
    clear,       // The peer must be told that the message may come.
  };
  Result<Announcement> announced(const Frame& frame);
  // All bytes of an unexpected message have come. Returns whether it still has no receive.
  bool unexpected_complete(Unexpected& unexpected);

  // A message wants to go that has to wait for its receive; returns whether that has already been
  // announced.
  bool post_waiting_send(Request& request);
  // The peer has posted the receive of such a message. Returns the send that may go now, or null
  // (then remembered).
  Result<Request*> clear_arrived(const Frame& frame);

  // Ends receives and waiting sends of the group with `reason`, and drops its unexpected messages.
  // Null: the peer is gone; ends those of all groups, of which messages that are all here can still
  // be received.
  void end_requests(const std::uint64_t* group, const Status& reason);

  // See DataPlane.
  std::optional<UnexpectedMessage> find_conflict(std::uint64_t group, std::uint32_t sequence,
                                                 const OperationDescriptor& operation) const;
  // What the unexpected messages count for; announced ones do not.
  std::uint64_t unexpected_bytes() const { return unexpected_bytes_; }

 private:
  struct Posted {
    Request* request;
    // Its message waits at the peer for our clear: what else comes with this key is for
    // others.
    bool announced = false;
  };

  // The peer has posted a receive whose message has not been sent: see matcher.cc, Note [clears].
  struct Clear {
    MessageKey key;
    std::uint64_t message_bytes = 0;
  };

  std::vector<Posted>::iterator find_unannounced(const MessageKey& key);
  std::list<Unexpected>::iterator find_spare(std::size_t bytes);
  Unexpected& keep(const Frame& frame, std::size_t bytes);
  void drop(Unexpected& unexpected);
  void hand_over(Unexpected& unexpected, Request& request);

  Rank self_;
  Rank peer_;
  std::size_t* unexpected_count_;
  std::vector<Posted> receives_;
  // A list: the parser keeps a pointer to the one that is being filled.
  std::list<Unexpected> unexpected_;
  // Whose memory the next ones take; a few, since they are of each peer.
  std::list<Unexpected> spare_;
  std::size_t spare_bytes_ = 0;
  std::vector<Request*> waiting_sends_;
  std::vector<Clear> clears_;
  std::uint64_t unexpected_bytes_ = 0;
  std::size_t announced_ = 0;  // Of unexpected_.
};

}  // namespace stretto::transport
