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

// Moves the messages to and from one peer: as frames on the link of the control plane
// (frame_messages.h), or beside the links, by a library such as MPI or UCX
// (packets/stream_plane.h). The control plane (peer.h) knows who is alive, who has abandoned a
// group and who waits where. It needs a small ordered link, whatever moves the data.
//
// A `Request` describes a message: its key, its operation and its size travel with its bytes. A
// plane calls agree() (transport.h) on the receive and the message before it moves bytes into the
// receive. Among messages with equal keys, the first one sent goes to the first receive posted. A
// send of up to kEagerBytes ends without its receive, unless the receiver already holds too much
// that it has not asked for (kUnexpectedBytesMax); any other send may wait for its receive. Each
// request ends exactly once, by complete().
//
// Not thread safe. No function waits or calls back.
class PeerPlane {
 public:
  virtual ~PeerPlane() = default;

  virtual void send(Request& request) = 0;
  virtual void recv(Request& request) = 0;
  // Whether a message that a receive with this key would take has come or been announced.
  virtual bool has_arrived(const MessageKey& key) const = 0;
  // Returns a message that came before its receive and belongs to this operation of the group (by
  // its sequence number), but describes the operation differently. A plane that cannot look into
  // messages without a receive returns nothing; the receive finds the difference.
  virtual std::optional<UnexpectedMessage> find_conflict(std::uint64_t, std::uint32_t,
                                                         const OperationDescriptor&) const {
    return std::nullopt;
  }

  // Ends all requests of `group` with `reason`, and drops its messages that have come. No send or
  // receive of the group follows. Messages of the peer may still come; they are dropped for good,
  // since the number of a group is never used again.
  virtual void cancel(std::uint64_t group, const Status& reason) = 0;
  // Tells the plane that no more messages of the group come from the peer. This rank may have
  // cancelled the group or may do so later; after both, the plane need not remember to drop them.
  virtual void close(std::uint64_t /*group*/) {}
  // The number of groups that are cancelled or closed, but not both.
  virtual std::size_t half_closed() const { return 0; }
  // The peer is gone: ends all requests with `reason`. Messages that have come completely can still
  // be received.
  virtual void lose(const Status& reason) = 0;

  // Whether something that was sent to the peer is not yet certain to arrive, whatever this process
  // does next. The control plane waits for that, within limits, before this rank says goodbye, and
  // before it says that nothing more of a group follows.
  virtual bool has_output() const = 0;
  // How many packets have come from the peer. A packet may count as soon as its first bytes are
  // here. When the peer says by its link that it forgets a group, agrees on one or leaves, the
  // control plane acts on that once the packets that had come by then have been read.
  virtual std::uint64_t arrivals() const { return 0; }
  // Whether that many packets have been read, or no more will be.
  virtual bool has_read(std::uint64_t /*arrivals*/) const { return true; }
};

// Moves the messages of all peers beside the links. It has no descriptor that tells when there is
// something to do. So whoever waits calls progress(), and a rank that sleeps calls it every
// millisecond. Not thread safe. No function waits or calls back.
class DataPlane {
 public:
  virtual ~DataPlane() = default;
  // Lives as long as the plane.
  virtual PeerPlane& of(Rank peer) = 0;
  // Moves what can be moved now, and adds messages that came without a receive to `unexpected`.
  // Returns whether anything moved.
  virtual bool progress(UnexpectedQueue& unexpected) = 0;
  // Whether something that was sent leaves only if progress() is called again, although its request
  // may have ended. As of the last progress() or send().
  virtual bool must_push() const { return false; }
};

}  // namespace stretto::transport
