// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/status_slot.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "stretto/base/printable.h"

namespace stretto::job {

void StatusSlot::write(std::string_view text) {
  const std::size_t bytes = std::min(text.size(), kStatusTextBytes);
  const std::uint32_t sequence = sequence_.load(std::memory_order_relaxed);
  sequence_.store(sequence | 1, std::memory_order_relaxed);
  // Release: a reader that sees any of the following stores also sees the odd sequence.
  text_bytes_.store(static_cast<std::uint32_t>(bytes), std::memory_order_release);
  time_ns_.store(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(),
                 std::memory_order_release);
  for (std::size_t word = 0; word * 8 < bytes; ++word) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, text.data() + word * 8, std::min<std::size_t>(8, bytes - word * 8));
    text_[word].store(bits, std::memory_order_release);
  }
  sequence_.store((sequence | 1) + 1, std::memory_order_release);
}

// Any process that has mapped the memory may have written it: the length is checked, and
// printable() keeps the text from steering a terminal.
StatusSlot::Copy StatusSlot::copy() const {
  const std::uint32_t before = sequence_.load(std::memory_order_acquire);
  const std::size_t bytes =
      std::min<std::size_t>(text_bytes_.load(std::memory_order_acquire), kStatusTextBytes);
  const std::int64_t time_ns = time_ns_.load(std::memory_order_acquire);
  std::array<std::uint64_t, kTextWords> words{};
  for (std::size_t word = 0; word < kTextWords; ++word) {
    words[word] = text_[word].load(std::memory_order_acquire);
  }
  const std::uint32_t after = sequence_.load(std::memory_order_relaxed);

  Copy copy{.note = {}, .is_torn = before != after || before % 2 == 1};
  copy.note.text = printable({reinterpret_cast<const char*>(words.data()), bytes});
  copy.note.written = TimePoint(std::chrono::nanoseconds(time_ns));
  return copy;
}

std::optional<StatusNote> StatusSlot::try_read() const {
  Copy copy = this->copy();
  if (copy.is_torn) return std::nullopt;
  return std::move(copy.note);
}

StatusNote StatusSlot::read() const {
  // Bounded: a rank that was killed while it wrote leaves an odd number for ever. Its mixed text is
  // still the best there is.
  const Deadline deadline = Deadline::after(kWritingTime);
  Copy copy = this->copy();
  while (copy.is_torn && !deadline.passed()) {
    // The writer may be waiting for this processor.
    std::this_thread::yield();
    copy = this->copy();
  }
  return std::move(copy.note);
}

}  // namespace stretto::job
