// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stretto {

// A set of ranks of a job, one bit per rank. Visiting an empty set costs next to nothing even with
// hundreds of ranks. Not thread safe.
class RankSet {
 public:
  // Makes an empty set with room for `ranks` ranks.
  explicit RankSet(std::size_t ranks) : words_((ranks + kBits - 1) / kBits) {}

  void insert(std::size_t rank) { words_[rank / kBits] |= bit(rank); }
  void erase(std::size_t rank) { words_[rank / kBits] &= ~bit(rank); }

  // Calls `visit` for each rank in ascending order. `visit` may insert and erase ranks; a rank that
  // it inserts may or may not be visited.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t left = words_[i]; left != 0; left &= left - 1) {
        visit(i * kBits + static_cast<std::size_t>(std::countr_zero(left)));
      }
    }
  }

 private:
  static constexpr std::size_t kBits = 64;
  static std::uint64_t bit(std::size_t rank) { return std::uint64_t{1} << rank % kBits; }

  std::vector<std::uint64_t> words_;
};

}  // namespace stretto
