// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cmath>

namespace stretto::testing {

// Returns the greater number, or NaN if one of them is NaN, which std::max() would ignore.
inline double greater(double one, double other) {
  return std::isnan(other) || other > one ? other : one;
}

}  // namespace stretto::testing
