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

// The control plane of one other rank: who is alive, which groups have been abandoned or forgotten,
// who wants to know what, over an ordered link; and the gate to the data plane that moves the
// messages, by default as frames of the same link. Not thread safe.
class Peer final : private FrameReader::Sink {
 public:
  struct Ranks {
    Rank self = 0;
    Rank peer = 0;
    int count = 0;               // Of the job: what a peer says about ranks is checked against it.
    std::string peer_name = {};  // "node05 pid 8812", for messages; may be empty.
  };
  // `listener` is read at each event, so that it may be set later than this. `plane` moves the
  // messages; null: frames of the link do, and `unexpected_count` is that of a Matcher.
  Peer(const Ranks& ranks, std::unique_ptr<Link> link, TransportListener* const* listener,
       DataPlane* plane = nullptr, std::size_t* unexpected_count = nullptr);

  Link& link() { return *link_; }
  const Link& link() const { return *link_; }
  // Why the peer is lost; ok while it is not.
  const Status& status() const { return status_; }
  // Whether it is lost because it has left in good order.
  bool left() const { return !status_.ok() && said_goodbye_; }
  // Whether its link has ended, and it is lost in a moment: the listener may yet be told how its
  // process has ended. To be asked in progress(), since nothing tells of that.
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

  // Whether the peer is within reach (Link::check_contact); gives it something to acknowledge where
  // it should.
  void check_contact(TimePoint now);
  const Link::Contact& contact() const { return contact_; }
  // Ends everything that concerns this peer; told to the listener once. Not to be called by those
  // who are told of something.
  void lose(const Status& reason);

  // Reads and writes what can be moved now. Returns whether anything was. Not to be called by those
  // who are told of something: the parser is then in the middle of its bytes.
  bool progress();
  // Whether progress() may have something to do though no event of the link says so. If not, it has
  // nothing to do until link().service() or another function of this class is called.
  bool needs_progress() const;
  // The process of the peer is gone. It is lost when all that it has left in the link is read, also
  // if the link does not end, because the peer has forked.
  void process_ended(int number);
  // Only writes; anyone may call it at any time. A failure shows in the next progress().
  void flush();
  bool has_output() const { return !output_.empty(); }
  std::uint64_t written_bytes() const { return output_.written_bytes(); }

  const DataPlane& plane() const { return *plane_; }
  // Groups that one of the two sides has abandoned or forgotten and that the other, as far as is
  // known here, has not forgotten.
  std::size_t half_forgotten() const {
    return abandoned_.size() + farewells_.size() + plane_->half_closed(ranks_.peer);
  }

 private:
  Result<ByteSpan> begin(const Frame& frame) override;
  Status end(const Frame& frame) override;
  // What frames are about; they return a failure if no correct peer sends such a frame now.
  Status farewell_arrived(std::uint64_t group);
  void abort_arrived(const Frame& frame);
  void answer_inquiry(const Frame& frame);
  void report_arrived(const Frame& frame);
  std::string text() const;
  bool unwanted(const Frame& frame) const;
  bool plane_lags() const;
  // Says it when what has been sent by another plane cannot be overtaken.
  void say_behind_plane(const Frame& frame, ConstByteSpan payload = {});
  void say_unsaid();
  // Acts upon a farewell, an agreement or a goodbye when what the peer had sent before it has been
  // read. Fails if no correct peer says so.
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
  std::unique_ptr<FrameMessages> messages_;  // Null: another plane moves them.
  DataPlane* plane_;
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
  // Those, and the goodbye, of the peer that have come by the link before all of the messages that
  // it had sent by another plane.
  struct Unheard {
    Frame frame;
    std::vector<std::byte> payload;
    std::uint64_t arrivals = 0;  // Of the plane, when the frame came (DataPlane::arrivals).
  };
  std::list<Unheard> unheard_;     // Mostly none, for each of many peers: it has no memory then.
  std::size_t unheard_bytes_ = 0;  // Of payloads.
  Duration plane_waited_{};        // For how long they have waited for the plane.
  TimePoint checked_at_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> inquiries_;  // Not answered yet.

  FrameReader reader_;
  bool dropping_ = false;        // Whether the frame that is coming is about nothing of interest.
  std::vector<std::byte> text_;  // Of an abort, a report or an agreement.
  bool said_goodbye_ = false;
  int ended_process_ = 0;  // Its number, if it has ended.
  Deadline last_words_;    // When nothing of it can be on its way any more.
  bool leaving_ = false;
};

}  // namespace stretto::transport
