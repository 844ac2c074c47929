// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <sched.h>

#include "stretto/group/group.h"
#include "stretto/group/pause.h"

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
// is tried, never waited for, except by a holder of the engine, whom a thread on the fast path
// keeps no longer than it spins. That thread never takes the lock while the gate is its own: an
// operation that does not end in time is parked, and becomes an ordinary one as soon as anybody
// holds the engine. And only operations that run inline are remembered, so nobody spins for a long
// pass over memory.

// Note [settled memory]
//
// A processor hands a load what a store has written a moment ago only if one store wrote all of it.
// A descriptor or a view that has been put together field by field, and is then copied sixteen
// bytes at a time, waits for the stores to reach the cache: three or four nanoseconds for each
// copy, and once a seventh of an all-reduce of eight bytes. So the fast path takes views and
// descriptors by reference, and copies what an earlier call has left behind.

namespace {

// A rank that is later than this, a few microseconds, is waited for with the engine, which then
// yields and sleeps.
constexpr int kPolls = 64;    // As fast as can be...
constexpr int kPauses = 160;  // ...and then a little slower.
// Where ranks share cores, the others do not get on before this one lets them.
constexpr int kYields = 12;

}  // namespace

Group::FastOutcome Group::try_fast(const FastCall& call, std::shared_ptr<PendingOperation>& parked,
                                   std::uint32_t& number) {
  if (!engine_->is_home()) return FastOutcome::refused;
  // Acquire, and release below: what the gate guards is handed on with it.
  Gate expected = Gate::open;
  if (!gate_.compare_exchange_strong(expected, Gate::fast, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
    return FastOutcome::refused;
  }
  Recent* const recent = find_recent(call.operation);
  const std::uint32_t sequence = next_sequence_.load(std::memory_order_relaxed);
  auto turn = execution::Turn::without_lock(engine_->transport());
  // The descriptor that is remembered, not the caller's equal one: see Note [settled memory]. Its
  // execution is idle, as nothing is in flight.
  if (recent == nullptr || !recent->entry->idle.front()->try_start(recent->operation, call.input,
                                                                   call.output, sequence, turn)) {
    gate_.store(Gate::open, std::memory_order_release);
    return FastOutcome::refused;
  }
  next_sequence_.store(sequence + 1, std::memory_order_relaxed);
  execution::Execution& execution = *recent->entry->idle.front();
  const int yields = engine_->has_core_for_each_rank() ? 0 : kYields;
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
  if (execution.ended() && execution.status().ok() && !turn.must_notify()) {
    ended_.store(sequence, std::memory_order_relaxed);
    number = sequence;
    gate_.store(Gate::open, std::memory_order_release);
    return FastOutcome::ended;
  }
  parked_ = {pooled(), recent->entry};
  parked_.collective->begin(call.operation, sequence, Deadline::after(call.timeout));
  parked_.collective->call = {.operation = recent->operation,
                              .input = call.input,
                              .output = call.output,
                              .sequence = sequence};
  parked_.collective->runs_inline = true;
  parked = parked_.collective;
  gate_.store(Gate::parked, std::memory_order_release);
  return FastOutcome::parked;
}

void Group::adopt_parked() {
  if (gate_.load(std::memory_order_acquire) != Gate::parked) return;
  // Nobody else changes a parked gate: this thread holds the engine.
  gate_.store(Gate::closed, std::memory_order_relaxed);
  Running& running = running_.emplace_back();
  running.collective = std::move(parked_.collective);
  running.entry = parked_.entry;
  running.execution = take_execution(*parked_.entry);
  ++running.entry->in_use;
  engine_->submitted();
  for (const Rank member : membership_.members) {
    if (member != engine_->transport().rank()) engine_->transport().notify(member);
  }
  report(*running.collective);
}

// With the engine. Afterwards, what the gate guards belongs to its holder.
void Group::close_gate() {
  while (true) {
    Gate expected = Gate::open;
    if (gate_.compare_exchange_strong(expected, Gate::closed, std::memory_order_acquire,
                                      std::memory_order_acquire)) {
      return;
    }
    if (expected == Gate::closed) return;
    if (expected == Gate::parked) return adopt_parked();
    ::sched_yield();
  }
}

// With the engine. What others have freed stays mapped as long as an execution holds it, so that
// nobody reads where nothing is any more. Whenever memory has come or gone, executions have to find
// it anew, and hold nothing until then; those that run, or are on the fast path, are asked again.
void Group::release_mappings() {
  const std::uint64_t generation = engine_->transport().memory_generation();
  if (generation == memory_generation_) return;
  Gate expected = Gate::open;
  const bool was_open = gate_.compare_exchange_strong(
      expected, Gate::closed, std::memory_order_acquire, std::memory_order_acquire);
  if (!was_open && expected != Gate::closed) return;
  bool all = true;
  for (auto& [key, entry] : cache_) {
    for (auto& execution : entry.idle) all = execution->release_mappings() && all;
  }
  for (Running& running : running_) all = running.execution->release_mappings() && all;
  if (all) memory_generation_ = generation;
  if (was_open) gate_.store(Gate::open, std::memory_order_release);
}

// With the engine. Stays closed if something is in flight, or for ever.
void Group::open_gate() {
  if (!is_set_up_ || !is_one_team() || !failure_.ok() || !running_.empty() || !queue_.empty())
    return;
  gate_.store(Gate::open, std::memory_order_release);
}

Group::Recent* Group::find_recent(const OperationDescriptor& operation) {
  if (last_recent_->entry != nullptr && last_recent_->operation == operation) return last_recent_;
  for (Recent& recent : recent_) {
    if (recent.entry == nullptr || !(recent.operation == operation)) continue;
    last_recent_ = &recent;
    return &recent;
  }
  return nullptr;
}

void Group::remember(const PendingCollective& collective, CacheEntry& entry) {
  const OperationDescriptor& operation = collective.operation();
  if (operation.algorithm != 0 || operation.layout != 0) return;
  if (!collective.runs_inline || !entry.runs_alone) return;
  if (find_recent(operation) != nullptr) return;
  recent_[next_recent_++ % kRecent] = {operation, &entry};
}

}  // namespace stretto::group
