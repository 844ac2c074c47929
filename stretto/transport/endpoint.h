// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/rank_vector.h"
#include "stretto/transport/data_plane.h"
#include "stretto/transport/memory.h"
#include "stretto/transport/peer.h"
#include "stretto/transport/process_handle.h"
#include "stretto/transport/transport.h"

namespace stretto::transport {

// What a rank that waits tells the ranks that share memory with it: on which core, and, before it
// sleeps, "wake me". Null where every event arrives through a descriptor anyway.
class SleepFlag {
 public:
  virtual ~SleepFlag() = default;
  // Ordered before all later reads of memory that peers write (sequentially consistent).
  virtual void raise() = 0;
  virtual void lower() = 0;
  // On which core this rank waits. A hint. Any thread.
  virtual void note_core(std::uint32_t core) = 0;
};

// One rank's end of the transport: a link to each other rank, of whatever kind, and the memory it
// shares with some of them. See Transport for the contract.
class Endpoint : public Transport {
 public:
  struct Parts {
    Rank rank = 0;
    // links[r] leads to rank r; null for the rank itself.
    std::vector<std::unique_ptr<Link>> links;
    std::shared_ptr<SharedMemory> memory;   // Null: PrivateMemory.
    std::unique_ptr<SleepFlag> sleep_flag;  // May be null.
    // What moves all messages; the links then carry only what ranks say about each other. Null: the
    // links carry both.
    std::unique_ptr<DataPlane> data_plane = nullptr;
    // Per rank, where it is known: who dies is gone even if a child that it has forked keeps its
    // link open. May be empty.
    RankVector<ProcessHandle> processes = {};
    // Per rank: "node04 pid 8812", for messages. May be empty.
    std::vector<std::string> names = {};
    // How long the end of the endpoint waits for a peer that takes nothing of its last words.
    Duration farewell_time = std::chrono::seconds(1);
  };
  static Result<std::unique_ptr<Endpoint>> create(Parts parts);
  // Says goodbye to all peers. What has been sent goes out first; this waits for peers that are
  // there until the link has taken it, or has taken nothing for `farewell_time`. Requests that are
  // not done by then stay so: their owners hear no more of them.
  ~Endpoint() override;

  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  void set_listener(TransportListener* listener) override { listener_ = listener; }

  PeerStatus peer_status(Rank peer) const override;
  void send(Request& request) override;
  void recv(Request& request) override;
  bool has_arrived(Rank peer, const MessageKey& key) const override;
  Status find_conflict(std::uint64_t group, std::uint32_t sequence,
                       const OperationDescriptor& operation) const override;
  void abandon(std::uint64_t group, std::span<const Rank> members, const Status& reason) override;
  void forget(std::uint64_t group, std::span<const Rank> members, const Status& reason,
              Farewell farewell = Farewell::in_order) override;
  void send_agreement(Rank peer, const MessageKey& key, ConstByteSpan payload) override;
  void announce_abort(std::uint64_t group, std::span<const Rank> members, const Status& reason,
                      GroupStage stage) override;
  void inquire(Rank peer, std::uint64_t group, std::uint32_t sequence,
               const OperationDescriptor& operation) override;

  bool progress() override;
  void poll_all_next() override;
  void check_contacts(TimePoint now) override;
  void begin_sleep() override;
  void sleep(Deadline until) override;
  void end_sleep() override;
  void wake() override;

  Result<Region> allocate(std::size_t bytes) override;
  // Whether allocate() refuses what does not fit into the memory that is left. It does unless told
  // otherwise.
  void check_memory(bool wanted) { checks_memory_ = wanted; }
  SharedMemory& memory() const override { return *memory_; }
  void notify(Rank peer) override;
  bool sleeps(Rank peer) const override;
  bool shares_core() override;

  std::string link_name(Rank peer) const override;

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
  RankVector<std::unique_ptr<Peer>> peers_;  // Null at rank_.
  RankVector<ProcessHandle> processes_;
  FileDescriptor poll_;
  FileDescriptor wake_event_;
  bool polls_always_ = false;  // Whether some link has its data behind a descriptor (tcp).
  Duration farewell_time_;
  bool checks_memory_ = true;
  std::size_t unseen_bytes_ = 0;  // Allocated since the last look at the memory that is left.
  unsigned turns_ = 0;
  TimePoint next_contact_check_{};
  int sleepers_ = 0;
};

}  // namespace stretto::transport
