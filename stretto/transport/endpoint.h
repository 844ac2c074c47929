// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/rank_set.h"
#include "stretto/base/rank_vector.h"
#include "stretto/transport/data_plane.h"
#include "stretto/transport/memory.h"
#include "stretto/transport/peer.h"
#include "stretto/transport/process_handle.h"
#include "stretto/transport/ring_link.h"
#include "stretto/transport/transport.h"

namespace stretto::transport {

// One rank's end of the transport: a link to each other rank, of whatever kind, and the memory it
// shares with some of them. Moves bytes between the ranks of a job: messages (two-sided) and,
// between ranks that share memory, registered regions (one-sided).
//
// Not thread safe: one thread at a time, except for wake(), sleep() and functions that say
// otherwise. Only sleep() and the destructor wait. When a peer is lost, the requests with it end
// with that status; the others go on.
class Endpoint {
 public:
  struct Parts {
    Rank rank = 0;
    // links[r] leads to rank r; null for the rank itself.
    RankVector<std::unique_ptr<Link>> links = {};
    std::shared_ptr<SharedMemory> memory = nullptr;  // Null: PrivateMemory.
    // Null where every event arrives through a descriptor anyway.
    std::unique_ptr<SleepFlag> sleep_flag = nullptr;
    // Moves all messages; the links then carry only control frames. Null: the links carry both.
    std::unique_ptr<DataPlane> data_plane = nullptr;
    // The process of each rank, where it is known. A rank whose process has ended is lost even if a
    // forked child keeps its link open. May be empty.
    RankVector<ProcessHandle> processes = {};
    // Per rank: "node04 pid 8812", for messages. May be empty.
    RankVector<std::string> names = {};
    // How long the destructor waits while no peer takes any of the last bytes.
    Duration farewell_time = std::chrono::seconds(1);
  };
  static Result<std::unique_ptr<Endpoint>> create(Parts parts);
  // Says goodbye to all peers, after everything that was sent. Waits until the links have taken all
  // bytes, or none for `farewell_time`, and then for Link::finish(). Requests that have not ended
  // by then get no completion.
  virtual ~Endpoint();

  Rank rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  void set_listener(TransportListener* listener) { listener_ = listener; }

  // Whether a peer is still there, for callers who came after the listener was told.
  struct PeerStatus {
    Status status;      // Ok, or why the peer is lost or has left.
    bool left = false;  // Whether it said goodbye.
  };
  PeerStatus peer_status(Rank peer) const;

  // Two-sided. Messages up to kEagerBytes leave at once, unless the receiver already holds too much
  // that it has not asked for (kUnexpectedBytesMax); others leave when the receive has been posted,
  // so that nobody has to buffer them. Sizes or descriptors that differ end the receive with
  // mismatch.
  void send(Request& request);
  void recv(Request& request);
  // Whether a message that a receive with this key would take is here, or waits at the peer for its
  // receive. Messages that unexpected_message() has reported have arrived.
  bool has_arrived(Rank peer, const MessageKey& key) const;
  // Fails with mismatch if an unexpected message belongs to operation `sequence` of `group` but
  // describes it differently from `operation`.
  Status find_conflict(std::uint64_t group, std::uint32_t sequence,
                       const OperationDescriptor& operation) const;
  // Ends all requests of `group` with `reason`, and drops the messages that its `members` still
  // send for it; aborts and agreements still arrive. `members` are ranks of the job and may include
  // this one.
  void abandon(std::uint64_t group, std::span<const Rank> members, const Status& reason);
  // Like abandon(), but for good: drops everything that the members still send for the group until
  // they have forgotten it, too, and tells them so. To be called once per group, whose number is
  // never used again.
  void forget(std::uint64_t group, std::span<const Rank> members, const Status& reason,
              Farewell farewell = Farewell::in_order);
  // Sends an agreement to a member of a group, which may have been abandoned. Does nothing if the
  // member is lost. Copies `payload`, of at most kAgreementBytes.
  void send_agreement(Rank peer, const MessageKey& key, ConstByteSpan payload);
  // Tells the other members in reach that this rank has abandoned a group, and in which stage. To
  // be called before abandon() and forget(): a member that has long forgotten the group would take
  // it for a new one.
  void announce_abort(std::uint64_t group, std::span<const Rank> members, const Status& reason,
                      GroupStage stage);
  // Asks `peer` what it is doing (TransportListener::describe_state). Does nothing while an earlier
  // inquiry about the same operation is unanswered. The answer comes by state_reported() when the
  // peer makes progress, if ever. `operation` is what this rank believes the operation to be.
  void inquire(Rank peer, std::uint64_t group, std::uint32_t sequence,
               const OperationDescriptor& operation);

  // Moves what can be moved now. Returns whether anything moved.
  virtual bool progress();
  // Makes the next progress() also look at what it otherwise looks at only now and then: doorbells,
  // new memory, the end of a peer. For callers that seldom call progress().
  void poll_all_next();
  // Whether progress() must be called again so that what was sent leaves, or a dead peer is lost.
  bool must_push() const {
    return awaits_obituary_ || (data_plane_ != nullptr && data_plane_->must_push());
  }
  // Whether some peer's link has ended and progress() still waits to learn how its process ended,
  // before the peer is lost. No event wakes a sleeper for that.
  bool awaits_obituary() const { return awaits_obituary_; }
  // Gives up peers on other hosts from which nothing comes back: their host, or the network to it,
  // is gone. To be called a few times a second, whatever else is called. Does nothing if the last
  // look was less than 50 ms ago.
  void check_contacts(TimePoint now);
  // What check_contacts() found last.
  Link::Contact contact(Rank peer) const;

  // To sleep without losing an event: begin_sleep(); progress() once more; sleep() if that moved
  // nothing; end_sleep(). Only sleep() may run at the same time as other calls.
  void begin_sleep();
  void sleep(Deadline until);
  void end_sleep();
  // Ends the sleep() of all threads that are in it. Any thread.
  void wake();

  // One-sided: allocates memory that this rank shares with others. Fails as
  // SharedMemory::allocate() does, and with out_of_memory if the region does not fit into the
  // memory that the machine or this process' cgroup has left. Memory that is mapped but not yet
  // touched counts as used: the kernel provides it when it is touched, and kills a process for
  // which it has none.
  Result<Region> allocate(std::size_t bytes);
  // Sets whether allocate() refuses what does not fit into the memory that is left. Default: yes.
  void check_memory(bool wanted) { checks_memory_ = wanted; }
  SharedMemory& memory() const { return *memory_; }
  // Wakes `peer` if it sleeps. To be called after storing something in shared memory that it waits
  // for.
  void notify(Rank peer);
  // Whether notify() would wake `peer`. To be asked after the same store. Any thread.
  bool sleeps(Rank peer) const;
  // Notes on which core this rank waits. Returns whether another rank of this host last waited on
  // the same core, and may not run before this one yields; either may have moved since. Any thread.
  bool shares_core();

  // "shm", "tcp", "loopback", "self".
  std::string link_name(Rank peer) const;

  // For tests: the groups that one side has abandoned or forgotten and the other has not forgotten,
  // summed over peers.
  std::size_t half_forgotten_groups() const;

 protected:
  explicit Endpoint(Parts parts);
  Status open_poll();  // To be called once, after the constructor.

 private:
  Status watch_processes();
  bool poll_descriptors();
  bool progress_plane();
  void drain_plane();
  void drain();
  bool is_waited_for(const std::unique_ptr<Peer>& peer) const;
  void finish_links();
  Status silence_of(const Peer& silent) const;
  template <class Say>
  void tell(std::span<const Rank> ranks, const Say& say);
  Peer* peer(Rank rank) const { return peers_[rank].get(); }

  Rank rank_;
  TransportListener* listener_ = nullptr;
  std::shared_ptr<SharedMemory> memory_;
  std::unique_ptr<SleepFlag> sleep_flag_;
  std::unique_ptr<DataPlane> data_plane_;  // May be null.
  UnexpectedQueue unexpected_;
  std::size_t unexpected_count_ = 0;         // Over all peers, without another data plane's.
  RankVector<std::unique_ptr<Peer>> peers_;  // Null at rank_.
  RankSet due_;  // Peers whose progress() may have something to do: endpoint.cc, Note [due].
  // To ranks that share memory with this one. Never changes; any thread.
  std::vector<const Link*> local_links_;
  RankVector<ProcessHandle> processes_;
  FileDescriptor poll_;
  FileDescriptor wake_event_;
  bool polls_always_ = false;  // Whether some link has its data behind a descriptor (tcp).
  Duration farewell_time_;
  bool awaits_obituary_ = false;
  bool unwinds_ = false;  // Whether an exception destroyed the group that was forgotten last.
  bool checks_memory_ = true;
  std::size_t unseen_bytes_ = 0;  // Allocated since the last look at the memory that is left.
  unsigned turns_ = 0;
  TimePoint next_contact_check_{};
  int sleepers_ = 0;
};

}  // namespace stretto::transport
