// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "stretto/group/operation_queue.h"

namespace stretto::group {

// Where a collective on mapped memory whose kind has run before runs on its caller's thread,
// without the engine's lock. See fast_lane.cc, Note [fast path].
class FastLane {
 public:
  // A collective with equal shares, of no named algorithm, without packing.
  struct Call {
    const OperationDescriptor& operation;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    Duration timeout{};
  };
  enum class Outcome {
    refused,  // Nothing has happened: it is to be submitted to the group.
    ended,    // Well.
    parked,   // Begun; whoever holds the lock next makes it an ordinary operation.
  };

  // Both must outlive it.
  FastLane(Engine& engine, OperationQueue& operations)
      : engine_(&engine), operations_(&operations) {}

  // Any thread. `parked`: the operation, if it was parked, upon which adopt_parked() is to be
  // called. `number`: which collective it was, if it has ended.
  Outcome run(const Call& call, std::shared_ptr<PendingOperation>& parked, std::uint32_t& number);

  // Makes a parked operation an ordinary one, and closes the gate. False: nothing is parked;
  // somebody may have adopted it already.
  bool adopt_parked() STRETTO_REQUIRES(engine_held);
  // Afterwards, what the gate guards belongs to the holder of the lock.
  void close() STRETTO_REQUIRES(engine_held);
  // The same, if nobody has to be waited for. False: a thread is on the fast path, or has parked.
  bool try_close(bool& was_open) STRETTO_REQUIRES(engine_held);
  // Nothing is in flight, and the group goes on. Does nothing if the gate is not closed.
  void open() STRETTO_REQUIRES(engine_held);
  // Operations of such a kind run here from now on. The gate is closed.
  void remember(const OperationDescriptor& operation, PlanCache::Entry& entry)
      STRETTO_REQUIRES(engine_held);
  void forget_all() STRETTO_REQUIRES(engine_held) { kinds_ = {}; }
  // How many collectives have ended here. Any thread, without the lock.
  std::uint64_t ended_count() const { return ended_count_.load(std::memory_order_relaxed); }

 private:
  // A kind of operation that has run before.
  struct Kind {
    OperationDescriptor operation;
    PlanCache::Entry* entry = nullptr;
  };
  static constexpr std::size_t kKinds = 8;
  // Says to whom the collectives of the group, their numbers and their windows belong.
  enum class Gate {
    closed,  // Whoever holds the lock: something is in flight, being set up, or has failed.
    open,    // Nobody: nothing is in flight.
    fast,    // A thread on the fast path.
    parked,  // Whoever holds the lock next, who has to adopt parked_ first.
  };

  Kind* find(const OperationDescriptor& operation);
  void park(const Call& call, const Kind& kind, std::uint32_t sequence);

  Engine* engine_;
  OperationQueue* operations_;
  std::atomic<Gate> gate_{Gate::closed};
  // Written by the owner of the gate; atomic, because others look at it.
  std::atomic<std::uint64_t> ended_count_{0};
  // What is parked, or may be next.
  std::shared_ptr<PendingCollective> parked_;
  PlanCache::Entry* parked_entry_ = nullptr;
  std::array<Kind, kKinds> kinds_;
  std::size_t next_kind_ = 0;
  Kind* last_found_ = kinds_.data();
};

}  // namespace stretto::group
