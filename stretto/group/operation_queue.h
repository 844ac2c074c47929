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

// The collectives of a group. They are numbered and started in the order of submission. Those on
// mapped memory run one at a time; those by messages run a few at a time, so that on a network the
// latency of one hides behind the bytes of another (decision 0046). A barrier starts when all
// before it have ended. Operations that only their device has still to run do not hold up others.
//
// Used under the engine's lock, except pooled() and the numbers, which belong to the owner of the
// group's gate (fast_lane.h).
class OperationQueue {
 public:
  // Collectives by messages that run at the same time, at most.
  static constexpr std::size_t kRunningMax = 4;
  // The same including those that only their device has still to run.
  static constexpr std::size_t kLaunchedMax = 64;
  struct Item {
    std::shared_ptr<PendingCollective> collective;
    PlanCache::Entry* entry = nullptr;
    std::unique_ptr<execution::Execution> execution = nullptr;  // Null while it is queued.
  };

  // `membership` and `cache` must outlive it.
  OperationQueue(std::shared_ptr<Engine> engine, const execution::Membership& membership,
                 PlanCache& cache)
      : engine_(std::move(engine)), membership_(&membership), cache_(&cache) {
    running_.reserve(kRunningMax);  // So adopt() allocates nothing while none runs.
  }

  // The set-up has ended: the callers' first operation is #1.
  void begin_numbering() STRETTO_REQUIRES(engine_held);
  bool is_set_up() const { return is_set_up_; }
  // The number of the next collective.
  std::uint32_t next_sequence() const { return next_sequence_.load(std::memory_order_relaxed); }
  void take_sequence() {
    next_sequence_.store(transport::sequence_after(next_sequence()), std::memory_order_relaxed);
  }
  // The callers' collectives so far. After the last number it starts at 0 again.
  std::uint32_t begun_count() const { return is_set_up_ ? next_sequence() - 1 : 0; }
  // Takes the next collective's number and returns it. When numbers start at 1 again, it forgets
  // past operations, which would be mistaken for the new ones.
  std::uint32_t number_next() STRETTO_REQUIRES(engine_held) {
    const std::uint32_t sequence = next_sequence();
    take_sequence();
    if (next_sequence() < sequence) past_.clear();
    return sequence;
  }
  // The number of the last collective that has ended; 0: none.
  std::uint32_t last_ended() const { return ended_.load(std::memory_order_relaxed); }
  void set_ended(std::uint32_t sequence) { ended_.store(sequence, std::memory_order_relaxed); }

  // An operation that nothing else refers to.
  std::shared_ptr<PendingCollective> pooled();
  // Lends scratch to a packing that lacks it.
  Status lend_scratch(Packing& packing) STRETTO_REQUIRES(engine_held);
  void push(std::shared_ptr<PendingCollective> collective, PlanCache::Entry& entry)
      STRETTO_REQUIRES(engine_held);
  // Takes over a collective that the fast path has started, with the execution of its kind.
  void adopt(std::shared_ptr<PendingCollective> collective, PlanCache::Entry& entry)
      STRETTO_REQUIRES(engine_held);

  // Start queued collectives, and move running ones along, within the turn. Return whether anything
  // moved.
  bool start_ready(execution::Turn& turn) STRETTO_REQUIRES(engine_held);
  bool advance(execution::Turn& turn) STRETTO_REQUIRES(engine_held);
  // A running collective whose execution has failed; null: none.
  const Item* find_failed() const STRETTO_REQUIRES(engine_held);
  // Only takes note of messages that have ended.
  void take_completions() STRETTO_REQUIRES(engine_held);
  // See Group.
  std::shared_ptr<DeviceEnd> end_on_device(const PendingOperation& operation) const
      STRETTO_REQUIRES(engine_held);
  // Ends all collectives with `reason`, except those whose buffers other ranks still use. If the
  // failure is that of another rank (`of_others`), collectives that can end without the others end
  // well.
  void fail(const Status& reason, bool of_others) STRETTO_REQUIRES(engine_held);
  // After fail(): ends collectives whose buffers no other rank uses any more. Returns whether any
  // were left.
  bool release_buffers(const Status& reason, execution::Turn& turn) STRETTO_REQUIRES(engine_held);

  bool is_empty() const STRETTO_REQUIRES(engine_held) { return running_.empty() && queue_.empty(); }
  const std::vector<Item>& running() const STRETTO_REQUIRES(engine_held) { return running_; }
  const RingQueue<Item>& queued() const STRETTO_REQUIRES(engine_held) { return queue_; }
  // The collective that has been in flight longest; null: none.
  const PendingCollective* oldest() const STRETTO_REQUIRES(engine_held);
  // The members for which an operation waits. A queued collective waits for those of the oldest one
  // that runs. All others, if nothing is known.
  std::vector<Rank> waiting_for(const PendingOperation& operation) const
      STRETTO_REQUIRES(engine_held);
  // Unmaps memory that other ranks have freed. False: a running execution still uses some.
  bool release_mappings() STRETTO_REQUIRES(engine_held);

  // Whether `sequence` belongs to the present numbering: the set-up's until it has ended, then the
  // callers'.
  bool is_of_this_numbering(std::uint32_t sequence) const;
  // Whether it has been submitted here.
  bool has_been_submitted(std::uint32_t sequence) const {
    return is_of_this_numbering(sequence) && transport::precedes(sequence, next_sequence());
  }
  bool has_ended(std::uint32_t sequence) const STRETTO_REQUIRES(engine_held);
  bool is_running(std::uint32_t sequence) const { return find_running(sequence) != nullptr; }
  // The operation of a collective that has ended. Null: it took the fast path, did not run here, or
  // is forgotten.
  const OperationDescriptor* find_past(std::uint32_t sequence) const STRETTO_REQUIRES(engine_held) {
    return past_.find(sequence);
  }
  // The same of a running or ended collective.
  const OperationDescriptor* find(std::uint32_t sequence) const STRETTO_REQUIRES(engine_held);

  // "all_reduce(sum f32 [4]) #7". During the set-up, "the set-up of the communicator": users do not
  // know its operations.
  std::string name_of(const PendingOperation& operation) const STRETTO_REQUIRES(engine_held);
  // "between operations, after all_reduce(sum f32 [4]) #7".
  std::string between_operations() const STRETTO_REQUIRES(engine_held);
  // The last collective that has ended, and about when it ended.
  std::string name_of_ended() const STRETTO_REQUIRES(engine_held);
  TimePoint ended_at() const STRETTO_REQUIRES(engine_held) { return ended_at_; }
  // Notes whether a collective has ended since the last call.
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
  // Atomic, because threads that do not own the gate read them; relaxed, because they only read.
  std::atomic<std::uint32_t> next_sequence_{transport::kSetUpSequence};
  std::atomic<std::uint32_t> ended_{0};
  std::uint32_t ended_noted_ = 0;
  TimePoint ended_at_ = Clock::now();
  std::uint32_t reported_ = 0;  // The last collective reported to the launcher.
};

}  // namespace stretto::group
