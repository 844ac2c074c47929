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

// What a rank tells the others of a group when it enters an operation on mapped memory. A window
// has two, used in turn: a rank enters operation s + 2 only when all have entered s + 1, and so
// have read the post of s.
struct Post {
  // Where the caller's buffers lie.
  struct Buffers {
    std::uint64_t input_offset_bytes = 0;
    std::uint64_t output_offset_bytes = 0;
    std::uint32_t input_region = 0;  // As in RemoteAddress. 0: others cannot reach it.
    std::uint32_t output_region = 0;

    transport::RemoteAddress input() const { return {input_region, input_offset_bytes}; }
    transport::RemoteAddress output() const { return {output_region, output_offset_bytes}; }
    friend bool operator==(const Buffers&, const Buffers&) = default;
  };
  // Operations entered, counted from 1. Written last (release), read first (acquire).
  alignas(64) std::atomic<std::uint64_t> entered{0};
  OperationDescriptor operation;
  // In an operation that never runs on the callers' buffers themselves, this instead holds the
  // bytes that others need of the caller's input, if they fit.
  Buffers buffers;
  std::uint32_t sequence = 0;  // Of the operation in its group.

  static constexpr std::size_t kInlineBytes = sizeof(Buffers);
  std::byte* inline_bytes() { return reinterpret_cast<std::byte*>(&buffers); }
};
static_assert(sizeof(Post) == 64, "one cache line");

// The memory of one rank of a group that the ranks of its team have mapped: posts, the count of
// syncs, and two halves of staging for callers' private buffers. If the team is not the whole
// group, collectives also send messages, and use the lanes and their slots instead.
struct Window {
  Post posts[2];
  // Syncs reached by this rank since the group began. Stored by the owner only.
  alignas(128) std::atomic<std::uint64_t> syncs{0};
  // Note [private memory of an abandoned operation]: a rank whose operation fails returns its
  // buffers to their owner, who may free them, so a slow rank must not touch them any more. A rank
  // that copies from or to another's private memory therefore first says whose (`reaches_into`),
  // then looks whether that rank has abandoned the operation, and only then copies. A rank that
  // abandons one says so (`abandoned`), and waits until no rank says that it copies from or to its
  // memory. Both store before they load, sequentially consistent, so that one of the two sees the
  // other.
  //
  // The operation that this rank has abandoned, counted as in posts. Stored by the owner only.
  alignas(128) std::atomic<std::uint64_t> abandoned{0};
  // One more than the rank whose private memory this rank copies from or to just now; 0: nobody's.
  // Stored by the owner only.
  alignas(128) std::atomic<std::uint32_t> reaches_into{0};
  // See TeamLanes. Stored by the owner only. So many lanes keep a network of 1 Gbit/s with a delay
  // of 16 ms busy, and serve a few collectives at once. They take 8 MiB of a rank's memory, half of
  // it touched after as many segments and the rest after twice as many.
  static constexpr std::size_t kLanes = 16;
  struct Lane {
    // What the owner runs in this lane, for each set of slots.
    struct Record {
      OperationDescriptor operation;
      std::uint32_t sequence = 0;
    };
    alignas(128) std::atomic<std::uint64_t> syncs{0};  // Reached since the group began.
    Record records[schedule::kScratchSets];
  };
  Lane lanes[kLanes];
  alignas(128) std::byte staging[1];  // Two halves, or all lanes.

  // Two slots of half a MiB, and room to round them up.
  static constexpr std::size_t kHalfBytes = 1024 * 1024 + 4096;
  // How much each of `slots` slots may hold so that a half holds all: they begin on lines of their
  // own.
  static constexpr std::size_t slot_bytes(std::size_t slots) { return kHalfBytes / slots - 64; }
  // How much of the staging one lane has for one set of shared slots.
  static constexpr std::size_t kLaneBytes = kHalfBytes / 4 / 128 * 128;
  // The size of a window. `has_lanes`: it is one of a group on several hosts.
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
  RankVector<Window*> of;  // By rank of the group; null for other teams.
  std::vector<Rank> team;  // The ranks of the team, in ascending order.
  // Whether the whole group is one team.
  bool is_whole_group() const { return team.size() == of.size(); }
  // Keeps the others' windows mapped: a rank may leave while another still reads what it staged.
  std::vector<std::shared_ptr<void>> held;
  // The next four are the same on all ranks:
  bool oversubscribed = false;               // Some rank has to wait for a core.
  SingleCopy single_copy = SingleCopy::off;  // Off unless everybody reaches everybody's memory.
  std::size_t cache_bytes = 0;               // The least of all ranks' last-level caches.
  bool takes_lines = false;                  // See group::MemoryModel.
  std::uint64_t entered = 0;       // Operations on these windows that this rank has entered.
  std::uint64_t syncs = 0;         // Syncs that this rank has reached.
  std::uint64_t staging_turn = 0;  // Segments staged so far; decides which half is used.
};

}  // namespace stretto::execution
