// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/fast_lane.h"

#include <sched.h>

#include "stretto/base/scope_exit.h"
#include "stretto/group/idle_wait.h"

namespace stretto::group {

// Note [fast path]
//
// Between two ranks of a host, eight bytes take a tenth of a microsecond. A lock, a look at the
// clock, or counting a reference twice would take as long as the bytes. But a collective on mapped
// memory whose kind has run before does not need the engine: it sends no message, looks nothing up,
// and wakes no rank unless one sleeps. So its caller runs it without the engine, and spins a moment
// for ranks that are a little late.
//
// It needs the group's sequence, windows and cached executions for itself. The gate says who owns
// them. The gate is open only while no collective is in flight, so operations keep their order: a
// caller that finds it open runs at once, any other takes the lock and queues up. Callers only try
// the gate. Only a holder of the lock waits for it, and a thread on the fast path keeps it waiting
// no longer than that thread spins. A thread that owns the gate never takes the lock: an operation
// that does not end in time is parked, and becomes an ordinary one as soon as any thread holds the
// lock. Only operations that run inline are remembered, so no thread waits for a long pass over
// memory.

// Note [settled memory]
//
// A processor forwards recently stored bytes to a load only if a single store wrote all of them. If
// a descriptor or a view is written field by field and then copied sixteen bytes at a time, each
// copy waits three or four nanoseconds until the stores reach the cache; this once took a seventh
// of an all_reduce of eight bytes. So the fast path takes views and descriptors by reference, and
// copies those that an earlier call has stored.

namespace {

// The fast path waits a few microseconds. Then the engine waits for the late rank, by yielding and
// sleeping.
constexpr int kPolls = 64;    // Polls without a pause...
constexpr int kPauses = 160;  // ...and then with a pause instruction between them.
// Where ranks share cores, the others cannot run until this one yields.
constexpr int kYields = 12;

}  // namespace

FastLane::Outcome FastLane::run(const Call& call, std::shared_ptr<PendingOperation>& parked,
                                std::uint32_t& number) {
  if (!engine_->is_owner_process()) return Outcome::refused;
  // Acquire here and release below hand on what the gate guards.
  Gate expected = Gate::open;
  if (!gate_.compare_exchange_strong(expected, Gate::fast, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
    return Outcome::refused;
  }
  bool is_begun = false;
  const ScopeExit give_back([&] {
    if (!is_begun) gate_.store(Gate::open, std::memory_order_release);
  });
  // Allocates before the other ranks can see that this rank has entered, as there is no way back
  // then.
  if (parked_ == nullptr) parked_ = operations_->pooled();
  Kind* const kind = find(call.operation);
  const std::uint32_t sequence = operations_->next_sequence();
  auto turn = execution::Turn::without_lock(engine_->transport());
  // After the last number, past operations are forgotten, which needs the lock: see number_next().
  const bool is_last = transport::sequence_after(sequence) < sequence;
  // Passes the remembered descriptor, not the caller's equal one: see Note [settled memory]. The
  // kind's execution is idle, as nothing is in flight.
  if (kind == nullptr || is_last ||
      !kind->entry->mapped->try_start(kind->operation, call.input, call.output, sequence, turn)) {
    return Outcome::refused;
  }
  operations_->take_sequence();
  is_begun = true;
  execution::MappedExecution& execution = *kind->entry->mapped;
  const int yields = engine_->has_core_for_each_rank() ? 0 : kYields;
  try {
    for (int attempt = 0;; ++attempt) {
      execution.advance(turn);
      if (execution.ended() || turn.must_notify()) break;
      if (yields > 0) {
        if (attempt == yields) break;
        ::sched_yield();
      } else {
        if (attempt == kPolls + kPauses) break;
        if (attempt > kPolls) pause();
      }
    }
  } catch (const std::exception&) {
    // Other ranks have entered it, so it must go on. The thread that adopts it gets the same
    // exception, or gets further.
  }
  if (execution.ended() && execution.status().ok() && !turn.must_notify()) {
    operations_->set_ended(sequence);
    number = sequence;
    ended_count_.store(ended_count() + 1, std::memory_order_relaxed);
    gate_.store(Gate::open, std::memory_order_release);
    return Outcome::ended;
  }
  park(call, *kind, sequence);
  parked = parked_;
  gate_.store(Gate::parked, std::memory_order_release);
  return Outcome::parked;
}

void FastLane::park(const Call& call, const Kind& kind, std::uint32_t sequence) {
  parked_entry_ = kind.entry;
  parked_->begin(kind.operation, sequence, Deadline::after(call.timeout));
  parked_->call = {.operation = kind.operation,
                   .input = transport::BufferRef::own(call.input),
                   .output = transport::BufferRef::own(call.output),
                   .sequence = sequence};
}

bool FastLane::adopt_parked() {
  if (gate_.load(std::memory_order_acquire) != Gate::parked) return false;
  // Only a holder of the lock changes a parked gate.
  gate_.store(Gate::closed, std::memory_order_relaxed);
  operations_->adopt(std::move(parked_), *parked_entry_);
  return true;
}

void FastLane::close() {
  bool was_open = false;
  while (!try_close(was_open) && !adopt_parked()) ::sched_yield();
}

bool FastLane::try_close(bool& was_open) {
  Gate expected = Gate::open;
  was_open = gate_.compare_exchange_strong(expected, Gate::closed, std::memory_order_acquire,
                                           std::memory_order_acquire);
  return was_open || expected == Gate::closed;
}

void FastLane::open() {
  // Only a holder of the lock changes a closed gate.
  if (gate_.load(std::memory_order_relaxed) != Gate::closed) return;
  gate_.store(Gate::open, std::memory_order_release);
}

inline FastLane::Kind* FastLane::find(const OperationDescriptor& operation) {
  if (last_found_->entry != nullptr && last_found_->operation == operation) return last_found_;
  for (Kind& kind : kinds_) {
    if (kind.entry == nullptr || !(kind.operation == operation)) continue;
    last_found_ = &kind;
    return &kind;
  }
  return nullptr;
}

void FastLane::remember(const OperationDescriptor& operation, PlanCache::Entry& entry) {
  if (find(operation) != nullptr) return;
  kinds_[next_kind_++ % kKinds] = {operation, &entry};
}

}  // namespace stretto::group
