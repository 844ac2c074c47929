// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "stretto/transport/transport.h"

namespace stretto::execution {

// The policy on where bytes are worked on, counted as read and written by this rank; see
// docs/decisions/0011. An operation of up to kInlineBytes is run inside the call that submits it,
// as far as the other ranks have come. Of a larger one a call does no more than that.
inline constexpr std::size_t kInlineBytes = 256 * 1024;
// At most so many, or a little more, are worked on before the engine's lock is offered to others:
// about a tenth of a millisecond.
inline constexpr std::size_t kTurnBytes = 1024 * 1024;

// One turn of work: how many bytes may be read and written, and what may be used for it.
class Turn {
 public:
  // Whoever takes the turn holds the engine's lock.
  Turn(transport::Transport& transport, std::size_t bytes) : transport_(&transport), left_(bytes) {}
  // Whoever takes the turn does not, and must not use the transport, but for what is said to be
  // safe on any thread. Ranks that have to be woken up are only noted.
  static Turn without_lock(const transport::Transport& transport, std::size_t bytes) {
    Turn turn(const_cast<transport::Transport&>(transport), bytes);
    turn.has_lock_ = false;
    return turn;
  }

  bool has_lock() const { return has_lock_; }
  // `rank`, of the job, may sleep until what has just been stored for it.
  void notify(Rank rank) {
    if (has_lock_) return transport_->notify(rank);
    must_notify_ = must_notify_ || transport_->sleeps(rank);
  }
  // Without the lock: whether somebody has to be woken up with it.
  bool must_notify() const { return must_notify_; }

  bool is_over() const { return left_ == 0; }
  void spend(std::size_t bytes) { left_ -= std::min(left_, bytes); }
  // How many elements, of `count`, this turn still works on, and spends their bytes. While the turn
  // is not over there are some: a few are not worth a start, and cuts keep the alignment of lines.
  std::size_t take(std::size_t count, std::size_t bytes_per_element,
                   std::size_t least = kElementsLeast) {
    if (left_ / bytes_per_element >= count) {
      spend(count * bytes_per_element);
      return count;
    }
    const std::size_t whole = left_ / bytes_per_element / kElementsLeast * kElementsLeast;
    left_ = 0;
    return std::min(count, std::max(whole, least));
  }

 private:
  static constexpr std::size_t kElementsLeast = 1024;

  transport::Transport* transport_;
  std::size_t left_;
  bool has_lock_ = true;
  bool must_notify_ = false;
};

inline constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

}  // namespace stretto::execution
