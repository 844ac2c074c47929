// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace stretto::bench {

// Returns the middle value; of an even number of values the mean of the two in the middle; NaN if
// there are none.
inline double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const std::size_t middle = values.size() / 2;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(middle);
  std::nth_element(values.begin(), at, values.end());
  const double upper = *at;
  if (values.size() % 2 == 1) return upper;
  return (*std::max_element(values.begin(), at) + upper) / 2;
}

// Returns the smallest value that at least `fraction` of all values do not exceed (nearest rank).
// With fewer than 1 / (1 - fraction) values this is the largest. NaN if there are none.
inline double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double wanted = std::ceil(fraction * static_cast<double>(values.size())) - 1;
  const std::size_t index =
      std::min(values.size() - 1, static_cast<std::size_t>(std::max(0.0, wanted)));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(index);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// The median of a sample, and an interval that contains the median of the population with 95 %
// confidence (by the ranks of the values; with fewer than six values: from the smallest to the
// largest).
struct Interval {
  double median = 0;
  double low = 0;
  double high = 0;
};
inline Interval median_interval(std::vector<double> values) {
  if (values.empty()) return {median({}), median({}), median({})};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const auto outside =
      static_cast<std::size_t>(std::max(0.0, (count - 1.96 * std::sqrt(count)) / 2));
  return {median(values), values[outside], values[values.size() - 1 - outside]};
}

}  // namespace stretto::bench
