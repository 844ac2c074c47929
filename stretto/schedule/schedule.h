// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "stretto/base/id.h"
#include "stretto/base/operation.h"

namespace stretto::schedule {

// How many sets of scratch slots an execution alternates between, from one run of the list of steps
// to the next.
inline constexpr std::int32_t kScratchSets = 2;

// The buffer of a rank that holds a value.
enum class Buffer : std::uint8_t {
  input,    // The caller's input. Read only.
  output,   // The caller's output. May be the same memory as the input (see Schedule).
  raw,      // Scratch slots for values of the operation's dtype: an unreduced input of a rank, or
            // a finished result.
  partial,  // Scratch slots for partial reductions, kept in the accumulation dtype.
};

// The place of one chunk in one buffer. In input and output, `index` equals `chunk`. In scratch
// buffers, `index` is the number of the slot, and `chunk` gives the offset and length of the value
// in it.
struct Slot {
  Buffer buffer = Buffer::input;
  std::int32_t index = 0;
  ChunkIndex chunk = 0;

  friend bool operator==(const Slot&, const Slot&) = default;
};

// A slot of some rank. Steps name slots of other ranks only if these are in the schedule's team.
struct Place {
  Rank rank = 0;
  Slot slot;

  friend bool operator==(const Place&, const Place&) = default;
};

enum class StepKind : std::uint8_t {
  send,    // sources[0] goes to `peer` as message `message`. No source: a signal.
  recv,    // Message `message` of `peer` lands in targets[0]. No target: a signal.
  reduce,  // The sources, in canonical tree order, into every target. `completes`: the result is
           // whole, so a mean is divided here and the targets hold the operation's dtype.
  copy,    // sources[0] into every target. Same dtype on both sides.
  sync,    // Waits until every rank of the team has reached its sync of the same number. After it,
           // each of them sees what any of them wrote before the sync.
};

struct Step {
  StepKind kind = StepKind::sync;
  bool completes = false;
  // If true, this rank may take over the cache lines of the sources in shared slots (take_lines()).
  // No other rank that reads these slots does.
  bool takes = false;
  Rank peer = 0;
  // Number of the message. Messages from one rank to another are numbered from 0 in the order of
  // their steps, at the sender and at the receiver.
  std::int32_t message = 0;
  // Ranges in Schedule::places.
  std::int32_t sources_begin = 0;
  std::int32_t sources_end = 0;
  std::int32_t targets_begin = 0;
  std::int32_t targets_end = 0;
};

// How an algorithm's steps reach other ranks' data. This decides which ranks form its teams.
enum class Access : std::uint8_t {
  messages,  // send and recv only: there are no teams.
  mapped,    // reduce, copy and sync only: all ranks are one team.
  both,      // The ranks of a host are a team; messages go between hosts.
};

// The order in which contributions are combined.
enum class Order : std::uint8_t {
  canonical,  // The tree of kernel/reduce.h over ranks 0..n-1: the same bits with every canonical
              // algorithm.
  fixed,      // Another order: the same on every rank, and in every run with the same layout of
              // ranks on hosts.
  none,       // Nothing is combined.
};

// What one rank does in a collective: an ordered list of steps on chunks. It holds no bytes,
// sockets or threads. An execution runs it; this layer prints, verifies and prices it.
//
// Meaning: steps take effect as if executed in list order. An execution may run a step before
// earlier steps have ended if it accesses no slot that one of them writes, and writes no slot that
// one of them reads. Input and output may share memory (an in-place operation): then input chunk c
// and output chunk c are the same bytes, for every c. A schedule must be right in both cases, and
// verify() checks both; only an all_to_all is never in place. In place, a copy of input c onto
// output c does nothing, so it does not conflict with readers of input c.
//
// A send or recv without a slot is a signal, a message of 0 bytes. Its send waits until all earlier
// receives of its rank have ended; its receive waits for no other step.
//
// A step before a sync ends before the sync, and a step after it starts after it. Executions
// alternate between kScratchSets sets of scratch slots, run by run. Two sets are enough for any
// mixture of schedules that have a sync each: a rank has read the slots of other ranks of run s
// before its first sync of run s + 1, and run s + 2 writes these slots only after that.
//
// An execution cuts every chunk into segments and runs the list once per segment, so a schedule has
// no sizes. Schedule is a value type that may be copied freely. It is immutable once built, so any
// thread may read it.
struct Schedule {
  std::string_view algorithm;  // "ring": a name with static storage.
  Collective collective = Collective::barrier;
  // The ranks that have mapped each other's memory, including this one, in ascending order. Steps
  // may use the slots of these ranks, and a sync waits for all of them. Each of them names the same
  // team. Empty: no memory is mapped, and there are no syncs.
  std::vector<Rank> team;
  Order order = Order::none;
  Rank rank = 0;  // The rank that does the steps.
  std::int32_t rank_count = 1;
  // Chunks of the whole buffer; see below for collectives that fix their number.
  std::int32_t chunk_count = 1;
  Rank root = 0;  // Only of collectives that have a root.
  std::int32_t raw_slots = 0;
  std::int32_t shared_slots = 0;  // The first so many raw slots are shared with the team.
  std::int32_t partial_slots = 0;
  std::vector<Step> steps;
  std::vector<Place> places;

  std::span<const Place> sources(const Step& step) const {
    return std::span(places).subspan(step.sources_begin, step.sources_end - step.sources_begin);
  }
  std::span<const Place> targets(const Step& step) const {
    return std::span(places).subspan(step.targets_begin, step.targets_end - step.targets_begin);
  }
  std::size_t sync_count() const;
  bool is_in_team(Rank other) const;
};

// What callers' buffers hold, in chunks, on n ranks:
//   all_reduce      input: all chunks        output: all chunks, each reduced over ranks 0..n-1
//   reduce_scatter  input: n chunks          output: rank r writes only chunk r, reduced
//   all_gather      input: rank r reads only chunk r   output: n chunks, chunk r from rank r
//   broadcast       input: all chunks, on the root only   output: all chunks, on every rank, the
//                                            root too (unless in place)
//   reduce          input: all chunks        output: all chunks, reduced, on the root only
//   gather          input: rank r reads only chunk r   output: n chunks, on the root only
//   scatter         input: n chunks, on the root only   output: rank r writes only chunk r
//   all_to_all      n * n chunks; chunk s * n + d goes from rank s to rank d:
//                   input: rank r reads chunks r * n + d   output: rank r writes chunks s * n + r
//   barrier         no chunks
// A buffer that holds some chunks only is addressed by their numbers; it holds them in ascending
// order without gaps. Where chunks belong to ranks, the execution may give them different sizes.

// Whether the caller's input (or output) on `rank` holds `chunk`.
bool input_holds(const Schedule& schedule, Rank rank, ChunkIndex chunk);
bool output_holds(const Schedule& schedule, Rank rank, ChunkIndex chunk);
// The number of chunks that the collective must have; empty if the algorithm may choose it.
std::optional<std::int32_t> required_chunks(Collective collective, std::int32_t rank_count);

}  // namespace stretto::schedule
