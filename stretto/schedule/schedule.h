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

// How many sets of scratch slots a reader alternates between, from run to run of a list.
inline constexpr std::int32_t kScratchSets = 2;

// Where a value lies on a rank.
enum class Buffer : std::uint8_t {
  input,    // The caller's input: whole, `chunk_count` chunks. Read only.
  output,   // The caller's output. May be the same memory as the input (see Schedule).
  raw,      // Scratch slots for values of the operation's dtype: someone's unreduced input, or a
            // finished result.
  partial,  // Scratch slots for partial reductions, kept in the accumulation dtype.
};

// One chunk of one buffer. For scratch buffers `index` is the slot and `chunk` says which chunk's
// geometry (offset, length) the value in it has; for input and output both are the chunk.
struct Slot {
  Buffer buffer = Buffer::input;
  std::int32_t index = 0;
  ChunkIndex chunk = 0;

  friend bool operator==(const Slot&, const Slot&) = default;
};

// A slot of some rank. Other ranks' slots are those of the schedule's team.
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
           // they all see what any of them wrote before it.
};

struct Step {
  StepKind kind = StepKind::sync;
  bool completes = false;
  // Of the ranks that read what the sources in shared slots hold, this one may take their lines
  // (take_lines()); no other one does.
  bool takes = false;
  Rank peer = 0;
  // Messages from one rank to another are numbered from 0 in the order of their steps, on both
  // sides.
  std::int32_t message = 0;
  // Ranges in Schedule::places.
  std::int32_t sources_begin = 0;
  std::int32_t sources_end = 0;
  std::int32_t targets_begin = 0;
  std::int32_t targets_end = 0;
};

// How an algorithm's steps reach other ranks' data, hence which ranks form its teams.
enum class Access : std::uint8_t {
  messages,  // send and recv only: there are no teams.
  mapped,    // reduce, copy and sync only: all ranks are one team.
  both,      // The ranks of a host are a team; messages go between hosts.
};

// In which order contributions are combined.
enum class Order : std::uint8_t {
  canonical,  // The tree of kernel/reduce.h over ranks 0..n-1: the same bits as any other algorithm
              // that is canonical.
  fixed,      // Some other order, but the same on every rank, and for every run on hosts that ranks
              // lie on alike.
  none,       // Nothing is combined.
};

// What one rank does in a collective: an ordered list of steps on chunks. It holds no bytes,
// sockets or threads; an execution runs it, this layer prints, verifies and prices it.
//
// Meaning: steps take effect as if executed in list order; a reader may run a step earlier than its
// place in the list when it touches no slot that an unfinished earlier step writes, and writes none
// that an unfinished earlier step reads or writes. Input and output may share memory (an in-place
// operation): then input chunk c and output chunk c are the same bytes, for every c; a schedule
// must be right in both cases (verify() checks both; an all_to_all is never in place). In place, a
// copy of input c onto output c does nothing, so it conflicts with no reader of input c.
//
// A send or recv without a slot is a signal, a message of no bytes: the send waits until all
// earlier receives of its rank have ended, the receive for nothing.
//
// A step before a sync ends before it, and a step after it starts after it. A reader alternates
// between kScratchSets sets of scratch slots, run by run. Two are enough for any mixture of
// schedules with a sync in each: what a rank reads of others in run s it has read before its first
// sync of run s + 1, and run s + 2 writes after that.
//
// A reader cuts every chunk into segments and runs the list once per segment, so a schedule says
// nothing about sizes. A value type: copy freely. Immutable after build, so any thread may read it.
struct Schedule {
  std::string_view algorithm;  // "ring": a name with static storage.
  Collective collective = Collective::barrier;
  // The ranks that have mapped each other's memory, this rank among them, in ascending order: their
  // slots are what steps may touch, and a sync is of them. Each of them names the same ranks.
  // Empty: nothing is mapped, and there is no sync.
  std::vector<Rank> team;
  Order order = Order::none;
  Rank rank = 0;  // Whose steps these are.
  std::int32_t rank_count = 1;
  // Chunks of the whole buffer; see below for collectives that fix their number.
  std::int32_t chunk_count = 1;
  Rank root = 0;  // Of collectives that have one.
  std::int32_t raw_slots = 0;
  std::int32_t shared_slots = 0;  // Of the raw slots those, the first ones, that the team reaches.
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

// Shapes of the collectives, in chunks; n ranks.
//   all_reduce      input: all chunks         output: all chunks, each reduced over ranks 0..n-1
//   reduce_scatter  input: n chunks           output: rank r writes chunk r only, reduced
//   all_gather      input: rank r reads only its chunk r   output: n chunks, chunk r from rank r
//   broadcast       input: root's chunks      output: all chunks, on every rank (root too, unless
//                                             in place)
//   reduce          input: all chunks         output: all chunks, on the root only, reduced
//   gather          input: rank r reads only its chunk r   output: n chunks, on the root only
//   scatter         input: n chunks, on the root only      output: rank r writes chunk r only
//   all_to_all      n * n chunks, of which chunk s * n + d goes from rank s to rank d:
//                   input: rank r reads chunks r * n + d   output: rank r writes chunks s * n + r
//   barrier         no chunks
// A short buffer is addressed by the numbers of the chunks it holds, and holds them in that order,
// without gaps. Where chunks belong to ranks, the reader may give them different sizes.

// Whether the caller's input (output) of `rank` holds `chunk`.
bool input_holds(const Schedule& schedule, Rank rank, ChunkIndex chunk);
bool output_holds(const Schedule& schedule, Rank rank, ChunkIndex chunk);
// How many chunks the collective must have; nothing where an algorithm is free to choose.
std::optional<std::int32_t> required_chunks(Collective collective, std::int32_t rank_count);

}  // namespace stretto::schedule
