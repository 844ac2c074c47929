// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/transport/frame.h"
#include "stretto/transport/frame_messages.h"
#include "stretto/transport/frame_stream.h"
#include "stretto/transport/link.h"

namespace stretto::transport {

// The control plane of one other rank. Over an ordered link the two tell each other that they are
// alive, which groups they have abandoned or forgotten, and what they are doing. Also the gate to
// the data plane, which moves the messages, by default as frames of the same link. Not thread safe.
class Peer final : private FrameReader::Sink {
 public:
  struct Ranks {
    Rank self = 0;
    Rank peer = 0;
    int count = 0;               // Of the job's ranks: numbers that the peer sends are checked
                                 // against it.
    std::string peer_name = {};  // "node05 pid 8812", for messages; may be empty.
  };
  // `*listener` is read at each event, so it may be set later. `plane` moves the messages; null:
  // they are frames of the link, and `unexpected_count` is passed to a Matcher.
  Peer(const Ranks& ranks, std::unique_ptr<Link> link, TransportListener* const* listener,
       PeerPlane* plane = nullptr, std::size_t* unexpected_count = nullptr);

  Link& link() { return *link_; }
  const Link& link() const { return *link_; }
  // Why the peer is lost; ok while it is not.
  const Status& status() const { return status_; }
  // Whether it is lost because it has left in good order.
  bool left() const { return !status_.ok() && said_goodbye_; }
  // Whether the link has ended, and the peer is lost in a moment, because the listener may yet
  // learn how its process has ended. No event tells of that: progress() must be called.
  bool awaits_obituary() const { return status_.ok() && !end_.ok(); }

  void send(Request& request);
  void recv(Request& request);
  void abandon(std::uint64_t group, const Status& reason);
  void forget(std::uint64_t group, const Status& reason, Farewell farewell = Farewell::in_order);
  void send_agreement(const MessageKey& key, ConstByteSpan payload);
  void send_abort(std::uint64_t group, const Status& reason, GroupStage stage);
  void inquire(std::uint64_t group, std::uint32_t sequence, const OperationDescriptor& operation);
  // Says goodbye: from now on only what is in the queue goes out, and what comes is dropped.
  void leave();

  // Looks whether the peer is within reach (Link::check_contact), and sends it something to
  // acknowledge if the link asks for that.
  void check_contact(TimePoint now);
  const Link::Contact& contact() const { return contact_; }
  // Ends everything that concerns this peer, and tells the listener, once. Not to be called from
  // within a function of the listener.
  void lose(const Status& reason);

  // Reads and writes what can be moved now. Returns whether anything moved. Not to be called from
  // within a function of the listener: the parser is then in the middle of its bytes.
  bool progress();
  // Whether progress() may have something to do though no event of the link says so. If not, it has
  // nothing to do until link().service() or another function of this class is called.
  bool needs_progress() const;
  // The process of the peer, `number`, has ended. The peer is lost when all that it left in the
  // link has been read, even if a forked child keeps the link open.
  void process_ended(int number);
  // Only writes. May be called at any time, by the listener, too. A failure shows in the next
  // progress().
  void flush();
  bool has_output() const { return !output_.empty(); }
  std::uint64_t written_bytes() const { return output_.written_bytes(); }

  const PeerPlane& plane() const { return *plane_; }
  // The number of groups that one of the two sides has abandoned or forgotten and that the other,
  // as far as this rank knows, has not forgotten.
  std::size_t half_forgotten() const {
    return abandoned_.size() + farewells_.size() + plane_->half_closed();
  }

 private:
  Result<ByteSpan> begin(const Frame& frame) override;
  Status end(const Frame& frame) override;
  // Each handles one kind of frame. A Status fails if no correct peer sends such a frame now.
  Status farewell_arrived(std::uint64_t group);
  void abort_arrived(const Frame& frame);
  void answer_inquiry(const Frame& frame);
  void report_arrived(const Frame& frame);
  std::string text() const;
  bool unwanted(const Frame& frame) const;
  bool plane_lags() const;
  // Sends a frame when it cannot overtake what was sent by another plane.
  void say_behind_plane(const Frame& frame, ConstByteSpan payload = {});
  void say_unsaid();
  // Acts upon a farewell, an agreement or a goodbye when the messages that the peer sent before it
  // have been read. Fails if no correct peer sends it now.
  Status hear_later(const Frame& frame);
  Result<bool> hear();
  Status heard(const Frame& frame, ConstByteSpan payload);
  void check_process(bool moved);
  void end_by(const Status& reason);
  bool look_for_obituary();
  bool admits(const Request& request, bool is_here);

  Ranks ranks_;
  std::unique_ptr<Link> link_;
  TransportListener* const* listener_;
  Status status_;
  Status end_;  // Why the link has ended; ok while it has not.
  Deadline obituary_awaited_;
  Link::Contact contact_;
  OutputQueue output_;
  std::unique_ptr<FrameMessages> messages_;  // Null: another plane moves messages.
  PeerPlane* plane_;
  // Groups abandoned here, until both have forgotten them; and groups that the peer has forgotten
  // before this rank.
  struct Abandoned {
    Status reason;
    bool forgotten = false;
  };
  std::map<std::uint64_t, Abandoned> abandoned_;
  std::set<std::uint64_t> farewells_;
  // Farewells and agreements that must not overtake messages.
  struct Unsaid {
    Frame frame;
    std::vector<std::byte> payload;
  };
  std::vector<Unsaid> unsaid_;
  // Farewells, agreements and the goodbye of the peer that have come by the link before all
  // messages that it had sent earlier by another plane.
  struct Unheard {
    Frame frame;
    std::vector<std::byte> payload;
    std::uint64_t arrivals = 0;  // Of the plane, when the frame came (PeerPlane::arrivals).
  };
  std::list<Unheard> unheard_;     // Mostly empty, and then takes no memory.
  std::size_t unheard_bytes_ = 0;  // Of payloads.
  Duration plane_waited_{};        // For how long unheard_ has waited.
  TimePoint checked_at_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> inquiries_;  // Unanswered: group, sequence.

  FrameReader reader_;
  bool dropping_ = false;        // Whether the frame that is coming is to be ignored.
  std::vector<std::byte> text_;  // Of an abort, a report or an agreement.
  bool said_goodbye_ = false;
  int ended_process_ = 0;  // Number of the peer's process, if it has ended.
  Deadline last_words_;    // When nothing that it wrote is on its way any more.
  bool leaving_ = false;
};

}  // namespace stretto::transport
