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

// Identifies a message. A receive takes the message with an equal key from its peer; among messages
// with equal keys, the first one sent goes to the first receive posted.
struct MessageKey {
  std::uint64_t group = 0;
  std::uint32_t sequence = 0;  // Of the operation in its group, or kPointToPoint.
  std::uint32_t segment = 0;   // Of the operation; the tag of a point-to-point message.
  std::uint32_t message = 0;   // Within the segment, as the schedule numbers it.

  friend bool operator==(const MessageKey&, const MessageKey&) = default;
};

inline constexpr std::uint32_t kPointToPoint = 0xffffffff;
// Numbers from here on are those of the operations that set up a group.
inline constexpr std::uint32_t kSetUpSequence = 0xf0000000;

// A group's collectives are numbered from 1 to kSetUpSequence - 1 and then from 1 again, since a
// job may run for longer.
constexpr std::uint32_t sequence_after(std::uint32_t sequence) {
  return sequence + 1 == kSetUpSequence ? 1 : sequence + 1;
}
// Whether operation `first` of a group comes before operation `second`, assuming that they are less
// than half of all numbers apart.
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

// One message to be sent or received. The caller owns the object, and keeps it and its bytes in
// place until its completion is in `completions`. The transport puts it there inside send(),
// recv(), progress(), abandon() and the like; there is no callback.
struct Request {
  Rank peer = 0;  // Of the job, not of a group.
  MessageKey key;
  OperationDescriptor operation;  // Must be equal on both sides.
  ConstByteSpan outgoing;         // What to send; unused by receives.
  ByteSpan incoming;              // Where to receive, exactly this many bytes; unused by sends.
  CompletionQueue* completions = nullptr;  // Outlives the request.
  std::uint64_t cookie = 0;                // For the reader of the queue; the transport ignores it.
};

// Ends a request: pushes its completion. The transport must not use the request afterwards.
inline void complete(const Request& request, Status status) {
  request.completions->push({.cookie = request.cookie, .status = std::move(status)});
}

// What a rank was doing with a group when it abandoned it.
enum class GroupStage : std::uint32_t {
  set_up,   // It was making the group, which the others cannot finish without it.
  in_use,   // It had made the group, and sent all that the others need to make it.
  aborted,  // As in_use; its program has ended the group and all groups made from it.
};

// How a rank has come to forget a group.
enum class Farewell : std::uint32_t {
  in_order,
  unwinding,  // An exception that unwound the stack has destroyed the group there.
};

// The events that a transport reports to its user. Called inside progress() and check_contacts().
class TransportListener {
 public:
  // `peer` is lost for good. `status` says why and names the rank. Called once per peer.
  virtual void peer_lost(Rank peer, const Status& status) = 0;
  // Called instead if `peer` has said goodbye: it had ended everything it took part in.
  virtual void peer_left(Rank peer, const Status& status) { peer_lost(peer, status); }
  // How the process of the peer, whose link has ended, came to its end, such as "killed by
  // SIGKILL", as told by whoever looks after it. Empty text: it has not been told yet; the
  // transport asks again for a moment before peer_lost(). Nothing: nobody will tell.
  virtual std::optional<std::string> find_obituary(Rank /*peer*/) { return std::nullopt; }
  // A message of `from` has come for which no receive has been posted yet; `operation` is what
  // `from` believes operation `key.sequence` of the group to be.
  virtual void unexpected_message(Rank from, const MessageKey& key,
                                  const OperationDescriptor& operation) = 0;
  // `from` has abandoned `group` for `reason`, in `stage`. Not called for groups that this rank has
  // forgotten: a group that the listener does not know has not been made yet.
  virtual void group_aborted(std::uint64_t group, Rank from, const Status& reason,
                             GroupStage stage) = 0;
  // A peer has forgotten a group that this rank has not forgotten, and sends nothing more of it.
  virtual void group_left(std::uint64_t /*group*/, Rank /*from*/, Farewell /*farewell*/) {}
  // A peer has called send_agreement(). Fails if no correct peer sends this; then the peer is lost.
  virtual Status agreement_arrived(Rank /*from*/, const MessageKey& /*key*/,
                                   ConstByteSpan /*payload*/) {
    return {};
  }
  // A peer waits in an operation of a group, which it believes to be the one described, and asks
  // what this rank is doing, as seen from there. Returns a text for the peer's listener, of which
  // at most kReportTextBytes arrive.
  virtual std::string describe_state(Rank /*from*/, std::uint64_t /*group*/,
                                     std::uint32_t /*sequence*/,
                                     const OperationDescriptor& /*operation*/) {
    return {};
  }
  // The answer of a peer to inquire(). Characters that are not printable ASCII have become '?' or '
  // '.
  virtual void state_reported(Rank /*peer*/, std::uint64_t /*group*/, std::uint32_t /*sequence*/,
                              const std::string& /*text*/) {}

 protected:
  ~TransportListener() = default;
};

// The call of a rank of the job, and which operation of the group it is.
struct RankCall {
  Rank rank = 0;
  const OperationDescriptor& operation;
  std::uint32_t sequence = 0;
};
// The mismatch of two ranks that disagree about an operation: names both calls and the first
// difference. `tag` is that of a point-to-point message.
Status mismatch_status(const RankCall& other, const RankCall& self, std::uint32_t tag = 0);

// Whether `message` is what `receive` expects. If not, ends the receive with mismatch; both are
// then used up. `self` is this rank, for the text.
bool agree(const Request& receive, const Frame& message, Rank self);

// Messages above this size wait for their receive.
inline constexpr std::size_t kEagerBytes = 64 * 1024;

}  // namespace stretto::transport
