// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "stretto/group/operation_queue.h"

namespace stretto::group {

// Runs a collective on mapped memory on its caller's thread, without the engine's lock, if its kind
// has run before. See fast_lane.cc, Note [fast path].
class FastLane {
 public:
  // A collective with equal shares, without a named algorithm and without packing.
  struct Call {
    const OperationDescriptor& operation;
    const std::byte* input = nullptr;
    std::byte* output = nullptr;
    Duration timeout{};
  };
  enum class Outcome {
    refused,  // Nothing has happened: submit it to the group instead.
    ended,    // Without a failure.
    parked,   // Begun; the next thread that holds the lock makes it an ordinary operation.
  };

  // `engine` and `operations` must outlive the lane.
  FastLane(Engine& engine, OperationQueue& operations)
      : engine_(&engine), operations_(&operations) {}

  // Any thread. If the outcome is parked, `parked` is the operation, and the caller must take the
  // lock and call adopt_parked(). If the outcome is ended, `number` is the collective's number.
  Outcome run(const Call& call, std::shared_ptr<PendingOperation>& parked, std::uint32_t& number);

  // Makes a parked operation an ordinary one, and closes the gate. False: nothing is parked,
  // perhaps because another thread has adopted it.
  bool adopt_parked() STRETTO_REQUIRES(engine_held);
  // Closes the gate: afterwards the holder of the lock owns what the gate guards. Waits for a
  // thread on the fast path, and adopts what it has parked.
  void close() STRETTO_REQUIRES(engine_held);
  // Closes the gate if that needs no wait. False: a thread is on the fast path, or an operation is
  // parked.
  bool try_close(bool& was_open) STRETTO_REQUIRES(engine_held);
  // Opens a closed gate; does nothing otherwise. Nothing may be in flight, and the group must not
  // have failed.
  void open() STRETTO_REQUIRES(engine_held);
  // Operations of this kind run here from now on. The gate must be closed.
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
  // Who owns the collectives of the group, their numbers and their windows.
  enum class Gate {
    // The holder of the lock: something is in flight or being set up, or the group has failed.
    closed,
    open,    // Nobody: nothing is in flight.
    fast,    // A thread on the fast path.
    parked,  // The next holder of the lock, which has to adopt parked_ first.
  };

  Kind* find(const OperationDescriptor& operation);
  void park(const Call& call, const Kind& kind, std::uint32_t sequence);

  Engine* engine_;
  OperationQueue* operations_;
  std::atomic<Gate> gate_{Gate::closed};
  // Written by the owner of the gate; atomic, because other threads read it.
  std::atomic<std::uint64_t> ended_count_{0};
  // The parked operation, or a spare one for the next to park.
  std::shared_ptr<PendingCollective> parked_;
  PlanCache::Entry* parked_entry_ = nullptr;
  std::array<Kind, kKinds> kinds_;
  std::size_t next_kind_ = 0;
  Kind* last_found_ = kinds_.data();
};

}  // namespace stretto::group
