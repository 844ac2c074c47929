// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cmath>

namespace stretto::testing {

// The greater one, or NaN if one of them is: std::max() would let it go.
inline double greater(double one, double other) {
  return std::isnan(other) || other > one ? other : one;
}

}  // namespace stretto::testing
