// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "stretto/base/id.h"

namespace stretto {

// A vector with one value per rank of a job or group, indexed by the rank.
template <class T>
class RankVector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  RankVector(std::vector<T> values) : std::vector<T>(std::move(values)) {}  // NOLINT: it is one.
  // Makes one element for each of `ranks` ranks.
  explicit RankVector(int ranks) : std::vector<T>(static_cast<std::size_t>(ranks)) {}

  using std::vector<T>::operator[];
  auto operator[](int rank) -> typename std::vector<T>::reference {
    return (*this)[static_cast<std::size_t>(rank)];
  }
  auto operator[](int rank) const -> typename std::vector<T>::const_reference {
    return (*this)[static_cast<std::size_t>(rank)];
  }
  auto operator[](Rank rank) -> typename std::vector<T>::reference { return (*this)[rank.value()]; }
  auto operator[](Rank rank) const -> typename std::vector<T>::const_reference {
    return (*this)[rank.value()];
  }
};

}  // namespace stretto
