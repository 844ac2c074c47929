// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "stretto/base/status.h"
#include "stretto/base/view.h"

namespace stretto::transport {

// One direction of a stream of bytes in memory that two ranks share: one writer, one reader, no
// locks (Lamport, 1977). Positions count bytes since the beginning and never wrap.
//
// A view: the memory belongs to the inbox it lies in.
class Ring {
 public:
  static constexpr std::size_t kBytes =
      128 * 1024;  // A power of two; stays in the second-level cache.

  struct Control {
    alignas(128) std::atomic<std::uint64_t> written{0};  // Stored by the writer only.
    alignas(128) std::atomic<std::uint64_t> read{0};     // Stored by the reader only.
  };

  Ring() = default;
  Ring(Control* control, std::byte* data) : control_(control), data_(data) {}

  // Both fail with protocol if the positions make no sense.
  // Writer's side. Returns the bytes taken; 0: full.
  Result<std::size_t> write(std::span<const ConstByteSpan> pieces);
  // Reader's side. Returns the bytes given; 0: empty.
  Result<std::size_t> read(ByteSpan into);
  // How many bytes the reader has taken so far.
  std::uint64_t position() const { return control_->read.load(std::memory_order_relaxed); }
  // Whether the ring was full when the reader was at `position`, so that the writer may wait for
  // room. To be asked after a sequentially consistent fence (see ring_link.cc).
  bool was_full_at(std::uint64_t position) const {
    return control_->written.load(std::memory_order_relaxed) - position >= kBytes;
  }
  bool empty() const {
    return control_->written.load(std::memory_order_acquire) ==
           control_->read.load(std::memory_order_relaxed);
  }

 private:
  void copy_in(std::uint64_t position, ConstByteSpan bytes);
  void copy_out(std::uint64_t position, ByteSpan into) const;

  Control* control_ = nullptr;
  std::byte* data_ = nullptr;
};

// The memory of one rank in which the others leave bytes for it: words that say how it waits, and a
// ring per writer. Zeroed memory is an empty inbox.
class Inbox {
 public:
  static std::size_t bytes(int writers);

  Inbox() = default;
  // `memory` holds bytes(writers) bytes, aligned to 128.
  explicit Inbox(std::byte* memory) : memory_(memory) {}

  Ring ring(int writer) const;
  // 1 while the owner sleeps or is about to, and wants a doorbell.
  std::atomic<std::uint32_t>& sleeping() const { return header().sleeping; }
  // 1 once the owner has registered for expedited barriers, and issues one before it sleeps.
  std::atomic<std::uint32_t>& expedited() const { return header().expedited; }
  // One more than the core on which the owner has waited last.
  std::atomic<std::uint32_t>& core() const { return header().core; }

 private:
  struct alignas(128) Header {
    std::atomic<std::uint32_t> sleeping{0};
    std::atomic<std::uint32_t> expedited{0};
    std::atomic<std::uint32_t> core{0};
  };
  Header& header() const { return *std::launder(reinterpret_cast<Header*>(memory_)); }

  std::byte* memory_ = nullptr;
};

}  // namespace stretto::transport
