// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <list>
#include <vector>

#include "stretto/transport/data_plane.h"
#include "stretto/transport/frame.h"

namespace stretto::transport {

// Matches what one peer sends with what this rank has asked for. Keeps receives without a message,
// messages without a receive, and sends that wait for their receive. Pure bookkeeping: it uses no
// link, and only copies unexpected messages into their receives. Not thread safe.
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
    bool orphaned = false;  // To be dropped when all its bytes are here.
  };

  // `unexpected_count` counts the unexpected messages that all matchers of a rank keep, so that a
  // caller need not look through them if there are none. May be null.
  Matcher(Rank self, Rank peer, std::size_t* unexpected_count = nullptr)
      : self_(self), peer_(peer), unexpected_count_(unexpected_count) {}

  // A receive has been posted. If its message is here, takes it (and ends the request). Returns
  // whether the peer must be told by a clear that the message may come.
  bool post_receive(Request& request);
  // Whether a message with this key waits for a receive: it has come completely, or the peer has
  // announced it.
  bool has_arrived(const MessageKey& key) const;
  // The header of a message or data frame has come. Returns the receive whose buffer takes the
  // bytes. Null: `*unexpected` takes them if it is not null; otherwise they are to be dropped,
  // since the receive has ended with mismatch.
  Request* message_header(const Frame& frame, Unexpected** unexpected);
  Request* data_header(const Frame& frame);
  // The peer has announced a message that waits for its receive. Fails with protocol if too many
  // do.
  enum class Announcement {
    unexpected,  // No receive has been posted.
    settled,     // The clear has been sent already, or the receive has just ended with mismatch.
    clear,       // The peer must be told that the message may come.
  };
  Result<Announcement> announced(const Frame& frame);
  // All bytes of an unexpected message have come. Returns whether it still has no receive.
  bool unexpected_complete(Unexpected& unexpected);

  // A message is to be sent that has to wait for its receive. Returns whether the clear for it has
  // already come.
  bool post_waiting_send(Request& request);
  // A clear has come: the peer has posted the receive of such a message. Returns the send that may
  // go now. Null: there is none yet, and the clear is remembered.
  Result<Request*> clear_arrived(const Frame& frame);

  // Ends receives and waiting sends of `*group` with `reason`, and drops its unexpected messages.
  // Null: the peer is gone; does so for all groups, except that unexpected messages which have come
  // completely can still be received.
  void end_requests(const std::uint64_t* group, const Status& reason);

  // See PeerPlane.
  std::optional<UnexpectedMessage> find_conflict(std::uint64_t group, std::uint32_t sequence,
                                                 const OperationDescriptor& operation) const;
  // The cost of the unexpected messages (unexpected_cost_bytes()); announced ones cost nothing.
  std::uint64_t unexpected_bytes() const { return unexpected_bytes_; }

 private:
  struct Posted {
    Request* request;
    // Its message has been announced: other messages with this key are for other receives.
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
  // Memory kept for the next ones; only a few, since each peer has its own.
  std::list<Unexpected> spare_;
  std::size_t spare_bytes_ = 0;
  std::vector<Request*> waiting_sends_;
  std::vector<Clear> clears_;
  std::uint64_t unexpected_bytes_ = 0;
  std::size_t announced_ = 0;  // Announced ones in unexpected_.
};

}  // namespace stretto::transport
