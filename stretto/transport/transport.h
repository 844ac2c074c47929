// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <optional>
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

struct Frame;

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

// A group's collectives have the numbers from 1 up to these, and then from 1 again: a job may run
// for longer.
constexpr std::uint32_t sequence_after(std::uint32_t sequence) {
  return sequence + 1 == kSetUpSequence ? 1 : sequence + 1;
}
// Of two operations of one numbering, whether the first comes before the second; they are taken to
// be less than half of all numbers apart.
constexpr bool precedes(std::uint32_t first, std::uint32_t second) {
  const std::uint32_t begun_anew = second < first ? kSetUpSequence - 1 : 0;
  const std::uint32_t ahead = second + begun_anew - first;
  return ahead != 0 && ahead < kSetUpSequence / 2;
}

// How a request has ended.
struct Completion {
  std::uint64_t cookie = 0;  // Of the request.
  Status status;
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
  request.completions->push({.cookie = request.cookie, .status = std::move(status)});
}

// What a rank was doing with a group when it abandoned it.
enum class GroupStage : std::uint32_t {
  set_up,   // Making it, with the others: they cannot end that without this rank.
  in_use,   // It was made, and all that others need of this rank to make it has been sent.
  aborted,  // In use likewise; its program has ended it with all groups that were made of it.
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
  // How the process of `peer`, whose link has ended, has ended itself: "killed by SIGKILL", as far
  // as somebody who looks after it has told. Empty: it has not been told yet, and is asked again
  // for a moment before peer_lost(). Nothing: nobody will tell.
  virtual std::optional<std::string> find_obituary(Rank /*peer*/) { return std::nullopt; }
  // A message of `from` has come for which nothing has been posted yet; `operation` is what `from`
  // believes operation `key.sequence` of the group to be.
  virtual void unexpected_message(Rank from, const MessageKey& key,
                                  const OperationDescriptor& operation) = 0;
  // `from` has abandoned a group for `reason`, in that stage. Not told of groups that this rank has
  // forgotten: a group that nobody here knows is one that has not been made yet.
  virtual void group_aborted(std::uint64_t group, Rank from, const Status& reason,
                             GroupStage stage) = 0;
  // `from` has forgotten a group that this rank has not forgotten: nothing of it follows.
  virtual void group_left(std::uint64_t /*group*/, Rank /*from*/, Farewell /*farewell*/) {}
  // What `from` has passed to send_agreement(). Fails if no correct peer says so: then the peer is
  // lost.
  virtual Status agreement_arrived(Rank /*from*/, const MessageKey& /*key*/,
                                   ConstByteSpan /*payload*/) {
    return {};
  }
  // `from` waits in an operation of a group, which it believes to be `operation`, and wants to know
  // where this rank is, seen from there: a text for the listener of `from`, of which at most
  // kReportTextBytes of printable ASCII arrive.
  virtual std::string describe_state(Rank /*from*/, std::uint64_t /*group*/,
                                     std::uint32_t /*sequence*/,
                                     const OperationDescriptor& /*operation*/) {
    return {};
  }
  // The answer of `peer` to inquire(). What is not printable has become '?'.
  virtual void state_reported(Rank /*peer*/, std::uint64_t /*group*/, std::uint32_t /*sequence*/,
                              const std::string& /*text*/) {}

 protected:
  ~TransportListener() = default;
};

// What a rank of the job has called, and as which operation of the group.
struct RankCall {
  Rank rank = 0;
  const OperationDescriptor& operation;
  std::uint32_t sequence = 0;
};
// The failure of two ranks that disagree about an operation: both calls and the first difference.
// `tag` is that of a point-to-point message.
Status mismatch_status(const RankCall& other, const RankCall& self, std::uint32_t tag = 0);

// Whether a receive expects what the message is; else ends it with mismatch, told in a sentence.
// Both are then used up.
bool agree(const Request& receive, const Frame& message, Rank self);

// Messages above this size wait for their receive.
inline constexpr std::size_t kEagerBytes = 64 * 1024;

}  // namespace stretto::transport
