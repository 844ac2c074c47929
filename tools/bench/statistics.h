// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace stretto::bench {

// The middle value; of an even number of values the mean of the two in the middle. NaN of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const std::size_t middle = values.size() / 2;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(middle);
  std::nth_element(values.begin(), at, values.end());
  const double upper = *at;
  if (values.size() % 2 == 1) return upper;
  return (*std::max_element(values.begin(), at) + upper) / 2;
}

// The smallest value that `fraction` of all values do not exceed (nearest rank): with fewer than
// 1 / (1 - fraction) values that is the largest. NaN of none.
inline double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double wanted = std::ceil(fraction * static_cast<double>(values.size())) - 1;
  const std::size_t index =
      std::min(values.size() - 1, static_cast<std::size_t>(std::max(0.0, wanted)));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(index);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace stretto::bench
