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
// clock, or a reference counted twice would take as long as the bytes. But a collective on mapped
// memory whose kind has run before needs nothing of the engine: no message is sent, nothing is
// looked up, and if nobody sleeps nobody is woken. So its caller runs it alone, and spins a moment
// for ranks that are a little late.
//
// What it needs to itself are the group's sequence, windows and cached executions. The gate says
// whose they are. It is open only while no collective is in flight, so operations keep their order:
// whoever finds it open runs at once, whoever finds it otherwise takes the lock and queues up. It
// is tried, never waited for, except by a holder of the lock, whom a thread on the fast path
// keeps no longer than it spins. That thread never takes the lock while the gate is its own: an
// operation that does not end in time is parked, and becomes an ordinary one as soon as anybody
// holds the lock. And only operations that run inline are remembered, so nobody spins for a long
// pass over memory.

// Note [settled memory]
//
// A processor hands a load what a store has written a moment ago only if one store wrote all of it.
// A descriptor or a view that has been put together field by field, and is then copied sixteen
// bytes at a time, waits for the stores to reach the cache: three or four nanoseconds for each
// copy, and once a seventh of an all-reduce of eight bytes. So the fast path takes views and
// descriptors by reference, and copies what an earlier call has left behind.

namespace {

// A rank that is later than this, a few microseconds, is waited for by the engine, which then
// yields and sleeps.
constexpr int kPolls = 64;    // Looks one after the other...
constexpr int kPauses = 160;  // ...and then some with a pause of the processor between them.
// Where ranks share cores, the others do not get on before this one lets them.
constexpr int kYields = 12;

}  // namespace

FastLane::Outcome FastLane::run(const Call& call, std::shared_ptr<PendingOperation>& parked,
                                std::uint32_t& number) {
  if (!engine_->is_owner_process()) return Outcome::refused;
  // Acquire, and release below: what the gate guards is handed on with it.
  Gate expected = Gate::open;
  if (!gate_.compare_exchange_strong(expected, Gate::fast, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
    return Outcome::refused;
  }
  bool is_begun = false;
  const ScopeExit give_back([&] {
    if (!is_begun) gate_.store(Gate::open, std::memory_order_release);
  });
  // Ahead of the others' seeing that this rank has come: then there is no way back.
  if (parked_ == nullptr) parked_ = operations_->pooled();
  Kind* const kind = find(call.operation);
  const std::uint32_t sequence = operations_->next_sequence();
  auto turn = execution::Turn::without_lock(engine_->transport());
  // After the last number the past operations are forgotten, which takes the lock: number_next().
  const bool is_last = transport::sequence_after(sequence) < sequence;
  // The descriptor that is remembered, not the caller's equal one: see Note [settled memory]. Its
  // execution is idle, as nothing is in flight.
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
    // Others are in it. Whoever takes it over gets the same, or further.
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
  // Nobody else changes a parked gate: this thread holds the lock.
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
  // Nobody else changes a closed gate, either.
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
