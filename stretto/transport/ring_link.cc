// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/ring_link.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace stretto::transport {
namespace {

long membarrier(int command) { return ::syscall(__NR_membarrier, command, 0, 0); }

// A memory barrier on all running threads of all processes that have registered, at the cost of one
// system call of the thread that wants it. So of two sides that each store one word and then load
// the other's, the frequent one gets away without a fence (Linux: membarrier(2), global expedited).
// Registers this process. False where the kernel does not have it, or a sandbox forbids it.
bool register_expedited_barrier() {
  static const bool registered = [] {
    const long commands = membarrier(MEMBARRIER_CMD_QUERY);
    constexpr long kNeeded =
        MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
    return commands >= 0 && (commands & kNeeded) == kNeeded &&
           membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
  }();
  return registered;
}

// Works in a registered process only.
void expedited_barrier() {
  // A compiler must not move accesses across it either.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  (void)membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

Status gone() {
  return {StatusCode::peer_lost, "the process is gone, or has given up the connection"};
}

}  // namespace

// Note [sleeping and doorbells]
//
// A rank that goes to sleep raises its flag and then looks once more for work; a rank that has left
// work looks at the flag afterwards. Each side stores one word and then loads the other's (Dekker's
// pattern), so both need a sequentially consistent fence between store and load: without it each
// could miss the other's store, on x86 as well as on Arm, and the sleeper would sleep on.
//
// Such a fence waits until the store has reached the cache, which for a line that the peer has just
// read takes as long as the message itself. Sleeping is rare and work is not, so where both ranks
// have registered for it the sleeper issues an expedited barrier, which is one on all of its peers'
// threads: either it comes after the peer's store, which the sleeper then sees, or before the
// peer's load, which then sees the flag. The peer only has to keep the compiler from swapping the
// two.

RingLink::RingLink(Parts parts)
    : name_(parts.name),
      incoming_(parts.own.ring(parts.peer_rank)),
      outgoing_(parts.peer.ring(parts.own_rank)),
      own_(parts.own),
      peer_(parts.peer),
      doorbell_(std::move(parts.doorbell)),
      memory_(std::move(parts.memory)) {}

Result<std::size_t> RingLink::write(std::span<const ConstByteSpan> pieces) {
  if (doorbell_->closed()) return gone();
  Result<std::size_t> written = outgoing_.write(pieces);
  if (written.ok() && *written > 0) notify();
  return written;
}

Result<std::size_t> RingLink::read(ByteSpan into) {
  // Asked before the ring is read: what the peer wrote before its end is then certainly seen.
  const bool closed = doorbell_->closed();
  const std::uint64_t begin = incoming_.position();
  Result<std::size_t> given = incoming_.read(into);
  if (!given.ok()) return given;
  if (*given == 0 && closed) return gone();
  if (*given == 0) return given;
  // The peer may be asleep because the ring was full. If it was not, the peer waits for something
  // else, and to wake it at every message would double the system calls of a conversation.
  fence();
  if (incoming_.was_full_at(begin)) ring_if_asleep();
  return given;
}

void RingLink::notify() {
  fence();
  ring_if_asleep();
}

bool RingLink::peer_sleeps() const {
  fence();
  return peer_.sleeping().load(std::memory_order_relaxed) != 0;
}

// Relaxed, here and in note_core(): a hint, which publishes nothing.
bool RingLink::peer_waits_on(std::uint32_t core) const {
  return peer_.core().load(std::memory_order_relaxed) == core + 1;
}

void RingLink::fence() const {
  // Once both have registered, that stays so. Then one line less has to be in this core's cache.
  bool expedited = expedited_.load(std::memory_order_relaxed);
  if (!expedited) {
    expedited = own_.expedited().load(std::memory_order_relaxed) != 0 &&
                peer_.expedited().load(std::memory_order_relaxed) != 0;
    expedited_.store(expedited, std::memory_order_relaxed);
  }
  if (expedited) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}

void RingLink::ring_if_asleep() {
  std::atomic<std::uint32_t>& sleeping = peer_.sleeping();
  if (sleeping.load(std::memory_order_relaxed) == 0) return;
  // One doorbell per sleep is enough; the exchange decides who rings it.
  if (sleeping.exchange(0, std::memory_order_relaxed) != 0) doorbell_->ring();
}

SleepFlag::SleepFlag(Inbox inbox, std::shared_ptr<void> memory)
    : inbox_(inbox), memory_(std::move(memory)) {
  // Release: whoever sees the flag may rely on the registration.
  inbox_.expedited().store(register_expedited_barrier() ? 1 : 0, std::memory_order_release);
}

void SleepFlag::raise() {
  inbox_.sleeping().store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (inbox_.expedited().load(std::memory_order_relaxed) != 0) expedited_barrier();
}

void SleepFlag::lower() { inbox_.sleeping().store(0, std::memory_order_relaxed); }

// Stores only a change: the line is in the caches of all ranks that look at it.
void SleepFlag::note_core(std::uint32_t core) {
  std::atomic<std::uint32_t>& noted = inbox_.core();
  if (noted.load(std::memory_order_relaxed) == core + 1) return;
  noted.store(core + 1, std::memory_order_relaxed);
}

}  // namespace stretto::transport
