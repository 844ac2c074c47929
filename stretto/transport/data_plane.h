// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/ring_queue.h"
#include "stretto/transport/transport.h"

namespace stretto::transport {

// A message that came before its receive.
struct UnexpectedMessage {
  Rank from = 0;
  MessageKey key;
  OperationDescriptor operation;
};
using UnexpectedQueue = RingQueue<UnexpectedMessage>;

// What moves messages: our frames on a link (frame_messages.h), or something that matches and moves
// messages itself, such as MPI or UCX. Who is alive, who has abandoned a group and who waits where
// is the control plane's (peer.h), which needs a small ordered link whatever moves the data.
//
// A message is what Request says: its key, its operation and its size travel with its bytes, and
// a plane calls agree() (transport.h) on both before it moves bytes into a receive. Among equal
// keys the first sent goes to the first posted. A send of up to kEagerBytes ends without its
// receive; a larger one may wait for it. Each request ends exactly once, by complete().
//
// No descriptor tells when a plane beside the links has something to do: progress() is called by
// whoever waits, and every millisecond by a rank that sleeps.
//
// Not thread safe. Nothing waits, and nobody is called.
class DataPlane {
 public:
  virtual ~DataPlane() = default;

  virtual void send(Request& request) = 0;
  virtual void recv(Request& request) = 0;
  // Whether the message is here, or announced, that a receive with this key would take.
  virtual bool has_arrived(Rank peer, const MessageKey& key) const = 0;
  // A message of `peer` that came before its receive and belongs to operation `sequence` of the
  // group, but describes it otherwise than `operation`. A plane that cannot look into messages that
  // have no receive yet returns nothing: the receive finds out.
  virtual std::optional<UnexpectedMessage> find_conflict(Rank, std::uint64_t, std::uint32_t,
                                                         const OperationDescriptor&) const {
    return std::nullopt;
  }

  // Ends all requests of a group with `peer` with `reason`, and drops what is here of it. No send
  // or receive of the group follows, but messages of `peer` may: they are dropped, too, for good,
  // for the number of a group never comes again.
  virtual void cancel(Rank peer, std::uint64_t group, const Status& reason) = 0;
  // Nothing of the group comes from the peer any more, whether this rank has cancelled it or will
  // do so later: when both are so, a plane need not remember that it drops what comes.
  virtual void close(Rank, std::uint64_t /*group*/) {}
  // Groups that are cancelled or closed, but not both.
  virtual std::size_t half_closed(Rank) const { return 0; }
  // The peer is gone: ends all requests with it with `reason`. What it has sent before can still be
  // received.
  virtual void lose(Rank peer, const Status& reason) = 0;

  // Moves what can be moved now, and says which messages have come that no receive waits for.
  // Returns whether anything moved.
  virtual bool progress(UnexpectedQueue& unexpected) = 0;
  // Whether something that has been sent to the peer has not come as far as that it arrives,
  // whatever this process does: waited for, within limits, before this rank says goodbye, and
  // before it says that nothing more of a group follows.
  virtual bool has_output(Rank peer) const = 0;
  // Whether something of what has been sent leaves only while progress() is called, though the
  // requests may have ended. As of the last progress() or send().
  virtual bool must_push() const { return false; }
  // How many packets have come from the peer, as it counts them: a library may say so of a message
  // when its first bytes are here. That the peer forgets a group, agrees on what becomes of one, or
  // leaves, is acted upon when as many have been read as had come when it said so.
  virtual std::uint64_t arrivals(Rank) const { return 0; }
  // Whether so many have been read, or no more will be.
  virtual bool has_read(Rank, std::uint64_t /*arrivals*/) const { return true; }
};

}  // namespace stretto::transport
