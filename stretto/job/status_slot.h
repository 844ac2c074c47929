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

// More than a rank needs to write a note, though others have its processor meanwhile.
inline constexpr Duration kWritingTime = std::chrono::milliseconds(100);

// A note in memory that several processes have mapped: 256 bytes, zeros while nothing is written.
// Survives any content, which readers do not trust. One thread writes at a time, any may read.
class StatusSlot {
 public:
  // Replaces the note; what is beyond kStatusTextBytes is cut off. Never blocks and makes no system
  // call but the clock's.
  void write(std::string_view text);
  // Nothing stands in it any more.
  void clear() { sequence_.store(0, std::memory_order_release); }
  bool is_empty() const { return sequence_.load(std::memory_order_acquire) == 0; }

  // The note, fit for a terminal; nothing while it is being written.
  std::optional<StatusNote> try_read() const;
  // The note; from a writer that was killed while it wrote, or has not gone on with it for
  // kWritingTime, a mix of two. Waits no longer than that.
  StatusNote read() const;

 private:
  static constexpr std::size_t kTextWords = kStatusTextBytes / 8;
  struct Copy {
    StatusNote note;
    bool is_torn = false;
  };
  Copy copy() const;

  // A sequence lock: odd while the rank is writing. The text is in words that are atomic one by
  // one, so that reading what is being written is merely a note to be read again.
  std::atomic<std::uint32_t> sequence_;
  std::atomic<std::uint32_t> text_bytes_;
  std::atomic<std::int64_t> time_ns_;
  std::array<std::atomic<std::uint64_t>, kTextWords> text_;
};
static_assert(sizeof(StatusSlot) == 256);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace stretto::job
