// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <vector>

#include "stretto/base/id.h"

namespace stretto {

// A value for each rank, of a job or of a group, found by the rank.
template <class T>
class RankVector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  using std::vector<T>::operator[];
  auto operator[](Rank rank) -> typename std::vector<T>::reference {
    return (*this)[static_cast<std::size_t>(rank)];
  }
  auto operator[](Rank rank) const -> typename std::vector<T>::const_reference {
    return (*this)[static_cast<std::size_t>(rank)];
  }
};

}  // namespace stretto
