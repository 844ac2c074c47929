// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <span>

#include "stretto/base/inline_bytes.h"
#include "stretto/transport/endpoint.h"

namespace stretto::execution {

// How much work is done at a time, beyond kInlineBytes; see docs/decisions/0011.
//
// How much is read and written in one turn of progress, before the transport gets its turn again:
// the first if nothing else of this rank is in flight, about 3 ms; the second otherwise, about 0.4
// ms.
inline constexpr std::size_t kLoneTurnBytes = 32 * 1024 * 1024;
inline constexpr std::size_t kTurnBytes = 4 * 1024 * 1024;
// The same before a check whether others wait for the lock: about 0.4 ms.
inline constexpr std::size_t kPieceBytes = 4 * 1024 * 1024;
inline constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

// One turn of work: how many bytes may be read and written in it, and what may be used.
class Turn {
 public:
  // For a caller that holds the engine's lock. The turn ends early if `contenders` is given and
  // says that other threads wait for the lock, but not before something has been done.
  Turn(transport::Endpoint& transport, std::size_t bytes,
       const std::atomic<int>* contenders = nullptr)
      : transport_(&transport), left_(bytes), contenders_(contenders) {}
  // For a caller that does not hold the lock. It must not use the transport, except for functions
  // that any thread may call. notify() then only notes that somebody has to be woken.
  static Turn without_lock(transport::Endpoint& transport) {
    Turn turn(transport, kUnlimited);
    turn.has_lock_ = false;
    return turn;
  }

  bool has_lock() const { return has_lock_; }
  // Wakes those of these ranks of the job that sleep, for whom something has just been stored.
  void notify(std::span<const Rank> ranks) {
    for (const Rank rank : ranks) {
      if (has_lock_) {
        transport_->notify(rank);
      } else {
        must_notify_ = must_notify_ || transport_->sleeps(rank);
      }
    }
  }
  // Without the lock: whether somebody has to be woken up with it.
  bool must_notify() const { return must_notify_; }

  bool is_over() const {
    return left_ == 0 || (has_begun_ && contenders_ != nullptr &&
                          contenders_->load(std::memory_order_relaxed) > 0);
  }
  void spend(std::size_t bytes) {
    left_ -= std::min(left_, bytes);
    has_begun_ = true;
  }
  // Returns how many of `count` elements are worked on next, and spends their bytes. At least
  // `least` and 1024 if there are so many: fewer are not worth a start, and cuts keep the alignment
  // of lines.
  std::size_t take(std::size_t count, std::size_t bytes_per_element, std::size_t least = 0) {
    const std::size_t most = std::min(left_, kPieceBytes) / bytes_per_element;
    if (count > most) {
      count = std::min(count,
                       std::max({most / kElementsLeast * kElementsLeast, least, kElementsLeast}));
    }
    spend(count * bytes_per_element);
    return count;
  }

 private:
  static constexpr std::size_t kElementsLeast = 1024;

  transport::Endpoint* transport_;
  std::size_t left_;
  const std::atomic<int>* contenders_ = nullptr;
  bool has_lock_ = true;
  bool must_notify_ = false;
  bool has_begun_ = false;
};

}  // namespace stretto::execution
