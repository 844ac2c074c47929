// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "stretto/base/clock.h"

namespace stretto::job {

inline constexpr std::size_t kStatusTextBytes = 240;

struct StatusNote {
  std::string text;
  TimePoint written;
};

// More than a rank needs to write a note, even if other threads have its processor meanwhile.
inline constexpr Duration kWritingTime = std::chrono::milliseconds(100);

// A note in memory that several processes have mapped: 256 bytes, zeros while nothing is written.
// Readers trust no content and survive any. One thread writes at a time, any may read.
class StatusSlot {
 public:
  // Replaces the note; text beyond kStatusTextBytes is cut off. Never blocks and makes no system
  // call but the clock's.
  void write(std::string_view text);
  // Makes the slot empty.
  void clear() { sequence_.store(0, std::memory_order_release); }
  bool is_empty() const { return sequence_.load(std::memory_order_acquire) == 0; }

  // The note, in printable characters; nothing while it is being written.
  std::optional<StatusNote> try_read() const;
  // The note. If its writer was killed while it wrote, or takes longer than kWritingTime to write,
  // this is a mix of two notes. Waits no longer than that.
  StatusNote read() const;

 private:
  static constexpr std::size_t kTextWords = kStatusTextBytes / 8;
  struct Copy {
    StatusNote note;
    bool is_torn = false;
  };
  Copy copy() const;

  // A sequence lock: odd while the rank is writing. The text consists of atomic words, so a reader
  // that meets a writer is no data race: it reads the note again.
  std::atomic<std::uint32_t> sequence_;
  std::atomic<std::uint32_t> text_bytes_;
  std::atomic<std::int64_t> time_ns_;
  std::array<std::atomic<std::uint64_t>, kTextWords> text_;
};
static_assert(sizeof(StatusSlot) == 256);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace stretto::job
