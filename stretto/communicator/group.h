// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/ring_queue.h"
#include "stretto/communicator/mapped_execution.h"
#include "stretto/communicator/pending.h"
#include "stretto/communicator/selector.h"
#include "stretto/communicator/window.h"

namespace stretto::communicator {

// One group of ranks: its queue of collectives, the executions it has used, and its windows.
// Everything here happens under the engine's lock.
//
// Collectives run in the order of submission: those on mapped memory one at a time, those by
// messages a few at a time, so that on a network the latency of one hides behind the bytes of
// another.
class Group {
 public:
  Group(std::shared_ptr<Engine> engine, Membership membership);
  ~Group();

  std::uint64_t id() const { return membership_.group; }
  const Membership& membership() const { return membership_; }
  int size() const { return static_cast<int>(membership_.members.size()); }
  const Status& failure() const { return failure_; }

  struct Submission {
    OperationDescriptor operation;  // algorithm is filled in here.
    ConstByteSpan input = {};
    ByteSpan output = {};
    std::string_view algorithm = {};  // Empty: chosen.
    Deadline deadline = {};
  };
  // Fails, before anything is sent, if the algorithm does not exist or cannot be used.
  Result<std::shared_ptr<PendingOperation>> submit(const Submission& submission);

  struct Message {
    bool sends = false;
    Rank peer = 0;
    int tag = 0;
    OperationDescriptor operation;
    ConstByteSpan outgoing = {};
    ByteSpan incoming = {};
    Deadline deadline = {};
  };
  std::shared_ptr<PendingOperation> submit(const Message& message);

  // Whether collectives may run on mapped memory from now on: `windows` are everybody's.
  void use_windows(Windows windows);
  bool has_windows() const { return windows_.has_value(); }

  // Called by the engine.
  bool advance();
  void check_deadlines(TimePoint now);
  void member_lost(Rank job_rank, const Status& status);
  void member_left(Rank job_rank, const Status& status);
  void message_early(Rank from, std::uint32_t sequence, const OperationDescriptor& operation);
  void aborted_by(Rank from, const Status& reason);

  // The first failure wins: ends everything in flight with it, and every later submission. Tells
  // the others if `announce`.
  void fail(const Status& reason, bool announce);

 private:
  struct CacheKey {
    OperationDescriptor operation;
    bool in_windows = false;
    bool operator<(const CacheKey& other) const;
  };
  // What a kind of operation needs, kept from one call to the next.
  struct CacheEntry {
    MappedExecution::Plans mapped;
    std::shared_ptr<const Plan> messages;  // Instead of `mapped`.
    std::vector<std::unique_ptr<Execution>> idle;
    int in_use = 0;
  };
  struct Running {
    std::shared_ptr<PendingCollective> collective;
    std::unique_ptr<Execution> execution;
    CacheEntry* entry = nullptr;
  };
  struct Queued {
    std::shared_ptr<PendingCollective> collective;
    CacheEntry* entry = nullptr;
  };
  // Messages of a peer and tag are numbered, so that they keep their order whatever their size.
  using MessageCounts = std::map<std::pair<std::int32_t, int>, std::uint32_t>;

  Result<CacheEntry*> entry_for(OperationDescriptor& operation, std::string_view algorithm);
  Status fill(CacheEntry& entry, const OperationDescriptor& operation, std::string_view algorithm);
  std::shared_ptr<const Plan> make_plan(const schedule::Algorithm& algorithm,
                                        const OperationDescriptor& operation,
                                        std::size_t segment_bytes);
  void shrink_cache();
  std::shared_ptr<PendingCollective> pooled();

  void start_ready();
  bool may_start(const Queued& queued) const;
  void report(const PendingCollective& collective) const;
  void retire(std::size_t index);
  bool retire_messages();
  void check_departed();
  const PendingOperation* oldest() const;
  Status in_context(const PendingOperation* operation, const Status& cause) const;
  Status timed_out(const PendingOperation& operation) const;
  std::string late_ranks(const PendingOperation& operation) const;
  std::optional<Rank> rank_in_group(Rank job_rank) const;

  std::shared_ptr<Engine> engine_;
  Membership membership_;
  Selector selector_;
  std::optional<Windows> windows_;
  std::map<CacheKey, CacheEntry> cache_;
  std::vector<Running> running_;
  RingQueue<Queued> queue_;
  std::vector<std::shared_ptr<PendingMessage>> messages_;
  MessageCounts sent_;
  MessageCounts received_;
  std::vector<std::shared_ptr<PendingCollective>> pool_;  // Reused when nobody else holds them.
  std::vector<Status> departed_;  // Per member: why it is gone; ok while it is not.
  bool any_departed_ = false;
  std::uint32_t next_sequence_ = 1;
  Status failure_;
};

}  // namespace stretto::communicator
