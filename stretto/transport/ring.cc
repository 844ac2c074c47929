// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/ring.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "stretto/base/take_lines.h"

namespace stretto::transport {
namespace {

constexpr std::size_t kRingBytes = sizeof(Ring::Control) + Ring::kBytes;
static_assert(kRingBytes % 128 == 0);
// Positions move after this many bytes, so that reader and writer copy at the same time: with the
// whole ring in one step they would take turns.
constexpr std::size_t kStepBytes = 16 * 1024;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free,
              "atomics in shared memory must not hide a lock of one process");

Status position_failure(std::uint64_t bytes) {
  return status_of(StatusCode::protocol, "a ring of {} bytes claims to hold {}", Ring::kBytes,
                   bytes);
}

}  // namespace

void Ring::copy_in(std::uint64_t position, ConstByteSpan bytes) {
  const std::size_t offset = position % kBytes;
  const std::size_t first = std::min(bytes.size(), kBytes - offset);
  std::memcpy(data_ + offset, bytes.data(), first);
  std::memcpy(data_, bytes.data() + first, bytes.size() - first);
}

void Ring::copy_out(std::uint64_t position, ByteSpan into) const {
  const std::size_t offset = position % kBytes;
  const std::size_t first = std::min(into.size(), kBytes - offset);
  std::memcpy(into.data(), data_ + offset, first);
  std::memcpy(into.data() + first, data_, into.size() - first);
  if (into.size() < kTakenBytesMin || !writers_stay_owners()) return;
  take_lines(data_ + offset, first);
  take_lines(data_, into.size() - first);
}

Result<std::size_t> Ring::write(std::span<const ConstByteSpan> pieces) {
  const std::uint64_t begin = control_->written.load(std::memory_order_relaxed);
  // Acquire: the reader has copied the bytes out before it moved its position, so they may be
  // overwritten.
  const std::uint64_t read = control_->read.load(std::memory_order_acquire);
  if (begin - read > kBytes) return position_failure(begin - read);
  std::size_t room = kBytes - (begin - read);
  std::uint64_t position = begin;
  std::uint64_t published = begin;
  for (ConstByteSpan piece : pieces) {
    while (!piece.empty() && room > 0) {
      const std::size_t step = std::min({piece.size(), room, kStepBytes});
      copy_in(position, piece.first(step));
      piece = piece.subspan(step);
      position += step;
      room -= step;
      if (position - published < kStepBytes) continue;
      // Release: the bytes are in place before the reader sees that they are.
      control_->written.store(position, std::memory_order_release);
      published = position;
    }
  }
  if (position != published) control_->written.store(position, std::memory_order_release);
  return static_cast<std::size_t>(position - begin);
}

Result<std::size_t> Ring::read(ByteSpan into) {
  const std::uint64_t begin = control_->read.load(std::memory_order_relaxed);
  // Acquire: pairs with the writer's release; the bytes up to this position are in place.
  const std::uint64_t available = control_->written.load(std::memory_order_acquire) - begin;
  if (available > kBytes) {
    return position_failure(available);
  }
  const std::size_t given = std::min<std::size_t>(available, into.size());
  for (std::size_t done = 0; done < given;) {
    const std::size_t step = std::min(given - done, kStepBytes);
    copy_out(begin + done, into.subspan(done, step));
    done += step;
    // Release: the bytes have been copied before the writer may overwrite them.
    control_->read.store(begin + done, std::memory_order_release);
  }
  return given;
}

std::size_t Inbox::bytes(int writers) {
  return sizeof(Header) + static_cast<std::size_t>(writers) * kRingBytes;
}

Ring Inbox::ring(int writer) const {
  std::byte* begin = memory_ + sizeof(Header) + static_cast<std::size_t>(writer) * kRingBytes;
  return {std::launder(reinterpret_cast<Ring::Control*>(begin)), begin + sizeof(Ring::Control)};
}

}  // namespace stretto::transport
