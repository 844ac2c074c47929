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
// Not thread safe: one thread at a time, except where a function says otherwise, and for wake() and
// sleep(). Nothing waits but sleep().
// After a peer is lost, its requests end with that status; the others go on.
class Endpoint {
 public:
  struct Parts {
    Rank rank = 0;
    // links[r] leads to rank r; null for the rank itself.
    RankVector<std::unique_ptr<Link>> links = {};
    std::shared_ptr<SharedMemory> memory = nullptr;  // Null: PrivateMemory.
    // Null where every event arrives through a descriptor anyway.
    std::unique_ptr<SleepFlag> sleep_flag = nullptr;
    // What moves all messages; the links then carry only what ranks say about each other. Null: the
    // links carry both.
    std::unique_ptr<DataPlane> data_plane = nullptr;
    // Per rank, where it is known: who dies is gone even if a child that it has forked keeps its
    // link open. May be empty.
    RankVector<ProcessHandle> processes = {};
    // Per rank: "node04 pid 8812", for messages. May be empty.
    RankVector<std::string> names = {};
    // How long the end of the endpoint waits for a peer that takes nothing of its last words.
    Duration farewell_time = std::chrono::seconds(1);
  };
  static Result<std::unique_ptr<Endpoint>> create(Parts parts);
  // Says goodbye to all peers. What has been sent goes out first; this waits for peers that are
  // there until the link has taken it, or has taken nothing for `farewell_time`. Requests that are
  // not done by then stay so: their owners hear no more of them.
  virtual ~Endpoint();

  Rank rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  void set_listener(TransportListener* listener) { listener_ = listener; }

  // Whether a rank is there, for those who have come too late to be told by the listener.
  struct PeerStatus {
    Status status;      // Ok, or why the peer is lost or has left.
    bool left = false;  // Whether it said goodbye.
  };
  PeerStatus peer_status(Rank peer) const;

  // Two-sided. Messages up to kEagerBytes leave at once, unless the receiver already holds a lot
  // that it has not asked for; larger ones leave when the receive has been posted, so that nobody
  // has to buffer them. Sizes or descriptors that differ end the receive with mismatch.
  void send(Request& request);
  void recv(Request& request);
  // Whether the message that a receive with this key would take is here, or waits at the peer for
  // its receive. What unexpected_message() has told of has arrived.
  bool has_arrived(Rank peer, const MessageKey& key) const;
  // Looks through unexpected messages: mismatch if one of them belongs to operation
  // `sequence` of the group and describes it otherwise than `operation`.
  Status find_conflict(std::uint64_t group, std::uint32_t sequence,
                       const OperationDescriptor& operation) const;
  // Ends all requests of a group with `reason`, and drops what its members (of the job, this rank
  // may be among them) still send for it, but what they say to agree on who is left.
  void abandon(std::uint64_t group, std::span<const Rank> members, const Status& reason);
  // The same, for good: drops all that the members still send until they have forgotten the group,
  // too, and lets them know. Once per group, whose number never comes again.
  void forget(std::uint64_t group, std::span<const Rank> members, const Status& reason,
              Farewell farewell = Farewell::in_order);
  // Says something to a member of a group that may have been abandoned; nothing if the member is
  // lost. `payload`, of at most kAgreementBytes, is copied.
  void send_agreement(Rank peer, const MessageKey& key, ConstByteSpan payload);
  // Tells the other members in reach that this rank has abandoned a group, and in which stage.
  // Before abandon() and forget(), or a member that has long forgotten the group would take it for
  // a new one.
  void announce_abort(std::uint64_t group, std::span<const Rank> members, const Status& reason,
                      GroupStage stage);
  // Asks `peer` where it is (see TransportListener), as often as answers come: asked again before
  // the answer is here, it does nothing. The answer comes when the peer makes progress, if ever.
  // `operation` is what this rank believes that operation to be.
  void inquire(Rank peer, std::uint64_t group, std::uint32_t sequence,
               const OperationDescriptor& operation);

  // Moves what can be moved now. Returns whether anything did.
  virtual bool progress();
  // Lets the next progress() look at what it otherwise looks at now and then, too: doorbells, new
  // memory, the end of a peer. For those who seldom call it.
  void poll_all_next();
  // Whether what has been sent leaves, or who has died is lost, only if progress() is called again.
  bool must_push() const {
    return awaits_obituary_ || (data_plane_ != nullptr && data_plane_->must_push());
  }
  // Whether a peer is lost as soon as progress() finds how it has ended, which wakes nobody.
  bool awaits_obituary() const { return awaits_obituary_; }
  // Gives up peers on other hosts from which nothing comes back: their host is gone, or the network
  // to it. To be called a few times a second, whatever else is called; looks no more often.
  void check_contacts(TimePoint now);
  // What that has found last.
  Link::Contact contact(Rank peer) const;

  // Sleeping in three steps, so that no event is lost: begin_sleep(); look once more with
  // progress(); sleep() if there was nothing; end_sleep(). Only sleep() may run beside other calls.
  void begin_sleep();
  void sleep(Deadline until);
  void end_sleep();
  // Ends the sleep() of all threads that are in it. Any thread.
  void wake();

  // One-sided: the memory that this rank shares with others. Fails as SharedMemory::allocate()
  // does, and with out_of_memory if the region cannot fit into what the machine or this process'
  // cgroup has left, what is mapped but not yet touched included: such memory is paid for when it
  // is touched, and who cannot pay then is killed.
  Result<Region> allocate(std::size_t bytes);
  // Whether allocate() refuses what does not fit into the memory that is left. It does unless told
  // otherwise.
  void check_memory(bool wanted) { checks_memory_ = wanted; }
  SharedMemory& memory() const { return *memory_; }
  // Wakes `peer` if it sleeps. To be called after storing something in shared memory that it waits
  // for.
  void notify(Rank peer);
  // Whether notify() would have somebody to wake, asked after the same store. Any thread.
  bool sleeps(Rank peer) const;
  // Notes on which core this rank waits. True: another rank of this host has waited on the same one
  // last, and may not run before this one lets it; either may have moved since. Any thread.
  bool shares_core();

  // "shm", "tcp", "loopback", "self".
  std::string link_name(Rank peer) const;

  // Per peer, the groups that one side has forgotten and the other has not: for tests.
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
  std::size_t unexpected_count_ = 0;         // Of all peers; another data plane does not count.
  RankVector<std::unique_ptr<Peer>> peers_;  // Null at rank_.
  RankSet due_;  // Whose progress() may have something to do: endpoint.cc, Note [due].
  // To ranks that share memory with this one. Does not change: any thread.
  std::vector<const Link*> local_links_;
  RankVector<ProcessHandle> processes_;
  FileDescriptor poll_;
  FileDescriptor wake_event_;
  bool polls_always_ = false;  // Whether some link has its data behind a descriptor (tcp).
  Duration farewell_time_;
  bool awaits_obituary_ = false;
  bool unwinds_ = false;  // Whether an exception has destroyed the group forgotten last.
  bool checks_memory_ = true;
  std::size_t unseen_bytes_ = 0;  // Allocated since the last look at the memory that is left.
  unsigned turns_ = 0;
  TimePoint next_contact_check_{};
  int sleepers_ = 0;
};

}  // namespace stretto::transport
