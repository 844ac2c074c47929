// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "stretto/base/clock.h"
#include "stretto/base/id.h"
#include "stretto/base/operation.h"
#include "stretto/base/ring_queue.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"
#include "stretto/transport/memory.h"

namespace stretto::transport {

// Which message this is. A receive takes the message with an equal key from its peer; among equal
// keys the first sent goes to the first posted.
struct MessageKey {
  std::uint64_t group = 0;
  std::uint32_t sequence = 0;  // Of the operation in its group, or kPointToPoint.
  std::uint32_t segment = 0;   // Of the operation; the tag of a point-to-point message.
  std::uint32_t message = 0;   // Within the segment, as the schedule numbers it.

  friend bool operator==(const MessageKey&, const MessageKey&) = default;
};

inline constexpr std::uint32_t kPointToPoint = 0xffffffff;
// The operations by which a group is set up have numbers of their own, from here on.
inline constexpr std::uint32_t kSetUpSequence = 0xf0000000;

// How a request has ended.
struct Completion {
  std::uint64_t cookie = 0;  // Of the request.
  Status status;
  std::uint64_t bytes = 0;  // Of the message; 0 if the request has failed.
};
using CompletionQueue = RingQueue<Completion>;

// One message to be sent or received. The one who asks owns the object, and keeps it and the bytes
// in place until its completion is in the queue. The transport puts it there inside send(), recv(),
// progress(), abandon() and the like; nobody is called.
struct Request {
  Rank peer = 0;  // Of the job, not of a group.
  MessageKey key;
  OperationDescriptor operation;  // Must be equal on both sides.
  ConstByteSpan outgoing;         // What to send; unused by receives.
  ByteSpan incoming;              // Where to receive, exactly this many bytes; unused by sends.
  CompletionQueue* completions = nullptr;  // Outlives the request.
  std::uint64_t cookie = 0;                // For whoever reads the queue; nothing to the transport.
};

// Ends a request: its completion is in the queue, and nobody here knows it any more.
inline void complete(const Request& request, Status status) {
  const std::size_t bytes = status.ok() ? request.outgoing.size() + request.incoming.size() : 0;
  request.completions->push(
      {.cookie = request.cookie, .status = std::move(status), .bytes = bytes});
}

// What a rank was doing with a group when it abandoned it.
enum class GroupStage : std::uint32_t {
  set_up,  // Making it, with the others: they cannot end that without this rank.
  in_use,  // It was made, and all that others need of this rank to make it has been sent.
};

// How a rank has come to forget a group.
enum class Farewell : std::uint32_t {
  in_order,
  unwinding,  // An exception that unwound its stack has destroyed what was there of the group.
};

// What a transport tells its user unasked. Called inside progress() and check_contacts().
class TransportListener {
 public:
  // `peer` will never be heard of again. `status` says why and names the rank. Told once per peer.
  virtual void peer_lost(Rank peer, const Status& status) = 0;
  // The same, but `peer` has said goodbye: it had ended everything it took part in.
  virtual void peer_left(Rank peer, const Status& status) { peer_lost(peer, status); }
  // A message of `from` has come for which nothing has been posted yet; `operation` is what `from`
  // believes operation `key.sequence` of the group to be.
  virtual void unexpected_message(Rank from, const MessageKey& key,
                                  const OperationDescriptor& operation) = 0;
  // `from` has abandoned a group for `reason`, in that stage. Not told of groups that this rank has
  // forgotten: a group that nobody here knows is one that has not been made yet.
  virtual void group_aborted(std::uint64_t group, Rank from, const Status& reason,
                             GroupStage stage) = 0;
  // `from` has forgotten a group that this rank has not forgotten: nothing of it follows.
  virtual void group_left(std::uint64_t group, Rank from, Farewell farewell) {
    (void)group, (void)from, (void)farewell;
  }
  // What `from` has passed to send_agreement(). Fails if no correct peer says so: then the peer is
  // lost.
  virtual Status agreement_arrived(Rank from, const MessageKey& key, ConstByteSpan payload) {
    (void)from, (void)key, (void)payload;
    return {};
  }
  // `from` waits in an operation of a group, which it believes to be `operation`, and wants to know
  // where this rank is, seen from there: a text for the listener of `from`, of which at most
  // kReportTextBytes of printable ASCII arrive.
  virtual std::string describe_state(Rank from, std::uint64_t group, std::uint32_t sequence,
                                     const OperationDescriptor& operation) {
    (void)from, (void)group, (void)sequence, (void)operation;
    return {};
  }
  // The answer of `peer` to inquire(). What is not printable has become '?'.
  virtual void state_reported(Rank peer, std::uint64_t group, std::uint32_t sequence,
                              const std::string& text) {
    (void)peer, (void)group, (void)sequence, (void)text;
  }

 protected:
  ~TransportListener() = default;
};

// Moves bytes between the ranks of a job: messages (two-sided) and, between ranks that share
// memory, registered regions (one-sided).
//
// Not thread safe: one thread at a time, except where a function says otherwise, and for wake() and
// sleep(). Nothing waits but sleep(); get() and put() take as long as their bytes do.
// After a peer is lost, its requests end with that status; the others go on.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual void set_listener(TransportListener* listener) = 0;

  // Whether a rank is there, for those who have come too late to be told by the listener.
  struct PeerStatus {
    Status status;      // Ok, or why the peer is lost or has left.
    bool left = false;  // Whether it said goodbye.
  };
  virtual PeerStatus peer_status(Rank peer) const = 0;

  // Two-sided. Messages up to kEagerBytes leave at once, unless the receiver already holds a lot
  // that it has not asked for; larger ones leave when the receive has been posted, so that nobody
  // has to buffer them. Sizes or descriptors that differ end the receive with mismatch.
  virtual void send(Request& request) = 0;
  virtual void recv(Request& request) = 0;
  // Whether the message that a receive with this key would take is here, or waits at the peer for
  // its receive. What unexpected_message() has told of has arrived.
  virtual bool has_arrived(Rank peer, const MessageKey& key) const = 0;
  // Looks through unexpected messages: mismatch if one of them belongs to operation
  // `sequence` of the group and describes it otherwise than `operation`.
  virtual Status find_conflict(std::uint64_t group, std::uint32_t sequence,
                               const OperationDescriptor& operation) const = 0;
  // Ends all requests of a group with `reason`, and drops what its members (of the job, this rank
  // may be among them) still send for it, but what they say to agree on who is left.
  virtual void abandon(std::uint64_t group, std::span<const Rank> members,
                       const Status& reason) = 0;
  // The same, for good: drops all that the members still send until they have forgotten the group,
  // too, and lets them know. Once per group, whose number never comes again.
  virtual void forget(std::uint64_t group, std::span<const Rank> members, const Status& reason,
                      Farewell farewell = Farewell::in_order) = 0;
  // Says something to a member of a group that may have been abandoned; nothing if the member is
  // lost. `payload`, of at most kAgreementBytes, is copied.
  virtual void send_agreement(Rank peer, const MessageKey& key, ConstByteSpan payload) = 0;
  // Tells the other members in reach that this rank has abandoned a group, and in which stage.
  // Before abandon() and forget(), or a member that has long forgotten the group would take it for
  // a new one.
  virtual void announce_abort(std::uint64_t group, std::span<const Rank> members,
                              const Status& reason, GroupStage stage) = 0;
  // Asks `peer` where it is (see TransportListener), as often as answers come: asked again before
  // the answer is here, it does nothing. The answer comes when the peer makes progress, if ever.
  // `operation` is what this rank believes that operation to be.
  virtual void inquire(Rank peer, std::uint64_t group, std::uint32_t sequence,
                       const OperationDescriptor& operation) = 0;

  // Moves what can be moved now. Returns whether anything did.
  virtual bool progress() = 0;
  // Lets the next progress() look at what it otherwise looks at now and then, too: doorbells, new
  // memory, the end of a peer. For those who seldom call it.
  virtual void poll_all_next() = 0;
  // Gives up peers on other hosts from which nothing comes back: their host is gone, or the network
  // to it. To be called a few times a second, whatever else is called; looks no more often.
  virtual void check_contacts(TimePoint now) = 0;

  // Sleeping in three steps, so that no event is lost: begin_sleep(); look once more with
  // progress(); sleep() if there was nothing; end_sleep(). Only sleep() may run beside other calls.
  virtual void begin_sleep() = 0;
  virtual void sleep(Deadline until) = 0;
  virtual void end_sleep() = 0;
  // Ends the sleep() of all threads that are in it. Any thread.
  virtual void wake() = 0;

  // One-sided: the memory that this rank shares with others. Fails as SharedMemory::allocate()
  // does, and with out_of_memory if the region cannot fit into what the machine or this process'
  // cgroup has left, what is mapped but not yet touched included: such memory is paid for when it
  // is touched, and who cannot pay then is killed.
  virtual Result<Region> allocate(std::size_t bytes) = 0;
  virtual SharedMemory& memory() const = 0;
  // Wakes `peer` if it sleeps. To be called after storing something in shared memory that it waits
  // for.
  virtual void notify(Rank peer) = 0;
  // Whether notify() would have somebody to wake, asked after the same store. Any thread.
  virtual bool sleeps(Rank peer) const = 0;
  // Notes on which core this rank waits. True: another rank of this host has waited on the same one
  // last, and may not run before this one lets it; either may have moved since. Any thread.
  virtual bool shares_core() = 0;

  // "shm", "tcp", "loopback", "self".
  virtual std::string link_name(Rank peer) const = 0;
};

// The failure of two ranks that disagree about an operation: both calls and the first difference.
// `tag` is that of a point-to-point message.
Status mismatch_status(Rank other, const OperationDescriptor& theirs, Rank self,
                       const OperationDescriptor& ours, std::uint32_t sequence,
                       std::uint32_t tag = 0);

// The same for two ranks of which one sends and the other receives a message; if they agree about
// the operation, it is the sizes that differ.
struct MessageEnd {
  Rank rank = 0;
  OperationDescriptor operation;
  std::uint64_t message_bytes = 0;
};
// `blamed` is the rank of the status: the one that is not this rank.
Status disagreement(const MessageEnd& sender, const MessageEnd& receiver, Rank blamed,
                    const MessageKey& key);

// Messages above this size wait for their receive.
inline constexpr std::size_t kEagerBytes = 64 * 1024;

}  // namespace stretto::transport
