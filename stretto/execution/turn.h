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

// The policy on where bytes are worked on, behind kInlineBytes; see docs/decisions/0011.
//
// What is read and written in one turn of progress, before the transport is looked after again;
// where nothing else of this rank is in flight, and otherwise. About three milliseconds, and 0.4.
inline constexpr std::size_t kLoneTurnBytes = 32 * 1024 * 1024;
inline constexpr std::size_t kTurnBytes = 4 * 1024 * 1024;
// Before it is seen whether others wait for the lock: about 0.4 ms.
inline constexpr std::size_t kPieceBytes = 4 * 1024 * 1024;
inline constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

// One turn of work: how many bytes may be read and written in it, and what may be used.
class Turn {
 public:
  // Whoever takes the turn holds the engine's lock. It ends early where `contenders`, if given,
  // says that other threads wait for the lock, but not before something has been done.
  Turn(transport::Endpoint& transport, std::size_t bytes,
       const std::atomic<int>* contenders = nullptr)
      : transport_(&transport), left_(bytes), contenders_(contenders) {}
  // Whoever takes the turn does not, and must not use the transport, but for what is said to be
  // safe on any thread. Ranks that have to be woken up are only noted.
  static Turn without_lock(transport::Endpoint& transport) {
    Turn turn(transport, kUnlimited);
    turn.has_lock_ = false;
    return turn;
  }

  bool has_lock() const { return has_lock_; }
  // These ranks, of the job, may sleep until what has just been stored for them.
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
  // How many elements, of `count`, are worked on next; spends their bytes. At least `least`, if
  // there are so many: few are not worth a start, and cuts keep the alignment of lines.
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
