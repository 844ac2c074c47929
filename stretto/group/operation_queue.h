// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/ring_queue.h"
#include "stretto/group/past_operations.h"
#include "stretto/group/pending.h"
#include "stretto/group/plan_cache.h"

namespace stretto::group {

// The collectives of a group, numbered in the order of submission, in which they run: those on
// mapped memory one at a time, those by messages a few at a time, so that on a network the latency
// of one hides behind the bytes of another (decision 0046). A barrier runs behind all of them. What
// devices have begun is in nobody's way.
//
// Used under the engine's lock, but for pooled() and the numbers, which belong to whoever owns the
// group's gate (fast_lane.h).
class OperationQueue {
 public:
  // Collectives by messages that run at the same time.
  static constexpr std::size_t kRunningMax = 4;
  // With those that only the device has still to run.
  static constexpr std::size_t kLaunchedMax = 64;
  struct Item {
    std::shared_ptr<PendingCollective> collective;
    PlanCache::Entry* entry = nullptr;
    std::unique_ptr<execution::Execution> execution = nullptr;  // Of what runs.
  };

  // `membership` and `cache` must outlive it.
  OperationQueue(std::shared_ptr<Engine> engine, const execution::Membership& membership,
                 PlanCache& cache)
      : engine_(std::move(engine)), membership_(&membership), cache_(&cache) {
    running_.reserve(kRunningMax);  // So that adopt() lacks no memory where none runs.
  }

  // What comes from now on is the callers': their first operation is #1.
  void begin_numbering() STRETTO_REQUIRES(engine_held);
  bool is_set_up() const { return is_set_up_; }
  // The number of the next collective.
  std::uint32_t next_sequence() const { return next_sequence_.load(std::memory_order_relaxed); }
  void take_sequence() {
    next_sequence_.store(transport::sequence_after(next_sequence()), std::memory_order_relaxed);
  }
  // Of the callers' collectives, until numbers begin at 1 again.
  std::uint32_t begun_count() const { return is_set_up_ ? next_sequence() - 1 : 0; }
  // Takes the next collective's number and returns it. When numbers begin at 1 again, the past
  // operations are forgotten, as the new ones would be taken for them.
  std::uint32_t number_next() STRETTO_REQUIRES(engine_held) {
    const std::uint32_t sequence = next_sequence();
    take_sequence();
    if (next_sequence() < sequence) past_.clear();
    return sequence;
  }
  // The last that has ended; 0: none.
  std::uint32_t last_ended() const { return ended_.load(std::memory_order_relaxed); }
  void set_ended(std::uint32_t sequence) { ended_.store(sequence, std::memory_order_relaxed); }

  // One that nobody else holds.
  std::shared_ptr<PendingCollective> pooled();
  // Scratch for a packing that has no place of its own.
  Status lend_scratch(Packing& packing) STRETTO_REQUIRES(engine_held);
  void push(std::shared_ptr<PendingCollective> collective, PlanCache::Entry& entry)
      STRETTO_REQUIRES(engine_held);
  // Takes over one that has been started by the first execution of its kind.
  void adopt(std::shared_ptr<PendingCollective> collective, PlanCache::Entry& entry)
      STRETTO_REQUIRES(engine_held);

  // Do what can be done now, within the turn. Return whether anything was.
  bool start_ready(execution::Turn& turn) STRETTO_REQUIRES(engine_held);
  bool advance(execution::Turn& turn) STRETTO_REQUIRES(engine_held);
  // One that has failed by itself; null: none.
  const Item* find_failed() const STRETTO_REQUIRES(engine_held);
  // Takes note of the messages that have ended, and no more.
  void take_completions() STRETTO_REQUIRES(engine_held);
  // See Group.
  std::shared_ptr<DeviceEnd> end_on_device(const PendingOperation& operation) const
      STRETTO_REQUIRES(engine_held);
  // Ends all with `reason`, but for those whose buffers others still use. If the failure is the
  // news `of_others`, what can end without them ends well.
  void fail(const Status& reason, bool of_others) STRETTO_REQUIRES(engine_held);
  // Afterwards: ends those whose buffers nobody uses any more. Returns whether there were any left.
  bool release_buffers(const Status& reason, execution::Turn& turn) STRETTO_REQUIRES(engine_held);

  bool is_empty() const STRETTO_REQUIRES(engine_held) { return running_.empty() && queue_.empty(); }
  const std::vector<Item>& running() const STRETTO_REQUIRES(engine_held) { return running_; }
  const RingQueue<Item>& queued() const STRETTO_REQUIRES(engine_held) { return queue_; }
  // The one that is in flight longest; null: none.
  const PendingCollective* oldest() const STRETTO_REQUIRES(engine_held);
  // The members for which an operation waits; a collective that is queued, for what runs before it.
  // All, if nothing is known.
  std::vector<Rank> waiting_for(const PendingOperation& operation) const
      STRETTO_REQUIRES(engine_held);
  // Lets go of what other ranks have freed. False: something that runs still uses it.
  bool release_mappings() STRETTO_REQUIRES(engine_held);

  // Whether operation `sequence` can be told apart from those by which the group is set up.
  bool is_of_this_numbering(std::uint32_t sequence) const;
  // Whether it has been submitted here.
  bool has_been_submitted(std::uint32_t sequence) const {
    return is_of_this_numbering(sequence) && transport::precedes(sequence, next_sequence());
  }
  bool has_ended(std::uint32_t sequence) const STRETTO_REQUIRES(engine_held);
  bool is_running(std::uint32_t sequence) const { return find_running(sequence) != nullptr; }
  // What one was that has ended; null: it did not run here, or it is forgotten.
  const OperationDescriptor* find_past(std::uint32_t sequence) const STRETTO_REQUIRES(engine_held) {
    return past_.find(sequence);
  }
  // What one is that has begun here, or was; null likewise.
  const OperationDescriptor* find(std::uint32_t sequence) const STRETTO_REQUIRES(engine_held);

  // "all_reduce(sum f32 [4]) #7"; nothing that only this library knows.
  std::string name_of(const PendingOperation& operation) const STRETTO_REQUIRES(engine_held);
  // "between operations, after all_reduce(sum f32 [4]) #7".
  std::string between_operations() const STRETTO_REQUIRES(engine_held);
  // The last collective that has ended, and about when.
  std::string name_of_ended() const STRETTO_REQUIRES(engine_held);
  TimePoint ended_at() const STRETTO_REQUIRES(engine_held) { return ended_at_; }
  // Looks whether one has ended since this was called last.
  void note_ended(TimePoint now) STRETTO_REQUIRES(engine_held);

 private:
  bool may_start(const Item& item) const STRETTO_REQUIRES(engine_held);
  void retire(std::size_t index) STRETTO_REQUIRES(engine_held);
  void report(const Item& item) STRETTO_REQUIRES(engine_held);
  const OperationDescriptor* find_running(std::uint32_t sequence) const;

  std::shared_ptr<Engine> engine_;
  const execution::Membership* membership_;
  PlanCache* cache_;
  std::vector<Item> running_;
  RingQueue<Item> queue_;
  ScratchPool scratch_;
  std::vector<std::shared_ptr<PendingCollective>> pool_;  // Reused when nobody else holds them.
  PastOperations past_;
  bool is_set_up_ = false;
  // Atomic, because others look at them who do not own the gate; relaxed, because they only look.
  std::atomic<std::uint32_t> next_sequence_{transport::kSetUpSequence};
  std::atomic<std::uint32_t> ended_{0};
  std::uint32_t ended_noted_ = 0;
  TimePoint ended_at_ = Clock::now();
  std::uint32_t reported_ = 0;  // The last collective that the launcher has heard of.
};

}  // namespace stretto::group
