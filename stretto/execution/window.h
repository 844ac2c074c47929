// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "stretto/base/operation.h"
#include "stretto/base/rank_vector.h"
#include "stretto/base/single_copy.h"
#include "stretto/schedule/schedule.h"
#include "stretto/transport/transport.h"

namespace stretto::execution {

// What a rank tells the others of a group when it enters an operation on mapped memory. Two of
// them, used in turn: a rank enters operation s + 2 only when all have entered s + 1, hence have
// read s.
struct Post {
  // Where the caller's buffers lie.
  struct Buffers {
    std::uint64_t input_offset_bytes = 0;
    std::uint64_t output_offset_bytes = 0;
    std::uint32_t input_region = 0;  // As in RemoteAddress. 0: nobody else's business.
    std::uint32_t output_region = 0;

    transport::RemoteAddress input() const { return {input_region, input_offset_bytes}; }
    transport::RemoteAddress output() const { return {output_region, output_offset_bytes}; }
    friend bool operator==(const Buffers&, const Buffers&) = default;
  };
  // Operations entered, counted from 1. Written last (release), read first (acquire).
  alignas(64) std::atomic<std::uint64_t> entered{0};
  OperationDescriptor operation;
  // Of an operation that never runs on the callers' buffers themselves, this holds instead what
  // others need of the caller's input, if that is so little.
  Buffers buffers;
  std::uint32_t sequence = 0;  // Of the operation in its group.

  static constexpr std::size_t kInlineBytes = sizeof(Buffers);
  std::byte* inline_bytes() { return reinterpret_cast<std::byte*>(&buffers); }
};
static_assert(sizeof(Post) == 64, "one cache line");

// The memory of one rank of a group that the ranks of its team have mapped: posts, the count of
// syncs, and two halves of staging for callers' private buffers. Where the team is not the whole
// group, collectives send messages, too, and use the lanes and what is in them instead.
struct Window {
  Post posts[2];
  // Syncs reached by this rank since the group began. By its owner only.
  alignas(128) std::atomic<std::uint64_t> syncs{0};
  // Note [private memory of an abandoned operation]: a rank whose operation fails returns its
  // buffers to their owner, who may free them, so a slow rank must not touch them any more. A rank
  // that copies from or to another's private memory therefore first says whose, then looks whether
  // that rank has abandoned the operation, and only then copies. A rank that abandons one says so,
  // and waits until no rank says that it copies from or to its memory. Both store before they load,
  // sequentially consistent, so that one of the two sees the other.
  //
  // The operation that this rank has abandoned, counted as in posts. By its owner only.
  alignas(128) std::atomic<std::uint64_t> abandoned{0};
  // Whose private memory this rank copies from or to just now, counted from 1; 0: nobody's. By its
  // owner only.
  alignas(128) std::atomic<std::uint32_t> reaches_into{0};
  // See TeamLanes. By its owner only. As many as keep a network of a gigabit busy that is 16 ms
  // long, and a few collectives at once: 9 MiB of a rank's memory, all of which is in use after so
  // many segments.
  static constexpr std::size_t kLanes = 16;
  struct Lane {
    // What the owner runs in this lane, by turns.
    struct Record {
      OperationDescriptor operation;
      std::uint32_t sequence = 0;
    };
    alignas(128) std::atomic<std::uint64_t> syncs{0};  // Reached since the group began.
    Record records[schedule::kScratchSets];
  };
  Lane lanes[kLanes];
  alignas(128) std::byte staging[1];  // Two halves, or all lanes.

  // Two slots of half a MiB, and room for what rounds them up.
  static constexpr std::size_t kHalfBytes = 1024 * 1024 + 4096;
  // What each of so many slots may hold, so that a half holds all: they begin on lines of their
  // own.
  static constexpr std::size_t slot_bytes(std::size_t slots) { return kHalfBytes / slots - 64; }
  // Of the staging, what one lane has for one set of shared slots.
  static constexpr std::size_t kLaneBytes = kHalfBytes / 4 / 128 * 128;
  // `has_lanes`: of a group on several hosts.
  static std::size_t bytes(bool has_lanes) {
    return offsetof(Window, staging) +
           (has_lanes ? kLanes * schedule::kScratchSets * kLaneBytes : 2 * kHalfBytes);
  }
  // More shared slots than these do not fit.
  static constexpr std::size_t kLaneSlotsMax = kLaneBytes / 128;
  static constexpr std::size_t lane_slot_bytes(std::size_t slots) {
    return kLaneBytes / slots - 64;
  }
  std::byte* lane_slots(std::size_t lane, std::size_t set) {
    return staging + (lane * schedule::kScratchSets + set) * kLaneBytes;
  }

  std::byte* half(std::uint64_t turn) { return staging + (turn % 2) * kHalfBytes; }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free,
              "atomics in shared memory must not hide a lock of one process");

// The windows of a team, in this rank's address space, and what has to be counted from one
// operation to the next. Zeroed memory is a fresh window.
struct Windows {
  transport::Region own;   // Keeps this rank's window mapped.
  RankVector<Window*> of;  // Of the group; null for those of other teams.
  std::vector<Rank> team;  // Those of the group that are here, in ascending order.
  // Whether the whole group is one team.
  bool is_whole_group() const { return team.size() == of.size(); }
  // Keeps the others' windows mapped: a rank may leave while another still reads what it staged.
  std::vector<std::shared_ptr<void>> held;
  // What all ranks say alike:
  bool oversubscribed = false;               // Some rank has to wait for a core.
  SingleCopy single_copy = SingleCopy::off;  // Off unless everybody reaches everybody's memory.
  std::size_t cache_bytes = 0;               // The least of all ranks' last-level caches.
  bool takes_lines = false;                  // See group::MemoryModel.
  std::uint64_t entered = 0;       // Operations on these windows that this rank has entered.
  std::uint64_t syncs = 0;         // Syncs that this rank has reached.
  std::uint64_t staging_turn = 0;  // Segments staged so far; decides which half is used.
};

}  // namespace stretto::execution
