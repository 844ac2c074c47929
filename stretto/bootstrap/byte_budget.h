// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>

namespace stretto::bootstrap {

// How many bytes a server holds for its clients, of all kinds, and how many it may. Not thread
// safe.
class ByteBudget {
 public:
  explicit ByteBudget(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Changes an account of `before` bytes to `after`. False, and nothing has changed, if that would
  // exceed the limit; an account that shrinks always may.
  bool change(std::size_t before, std::size_t after) {
    if (after > before && after - before > limit_bytes_ - used_bytes_) return false;
    used_bytes_ += after - before;
    return true;
  }
  std::size_t used_bytes() const { return used_bytes_; }
  std::size_t limit_bytes() const { return limit_bytes_; }

 private:
  std::size_t limit_bytes_;
  std::size_t used_bytes_ = 0;
};

}  // namespace stretto::bootstrap
