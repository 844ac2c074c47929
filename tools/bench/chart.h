// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>
#include <string>
#include <vector>

namespace stretto::bench {

// One value of a series over a size.
struct ChartPoint {
  double x = 0;  // Bytes.
  double y = 0;
  std::optional<double> upper = std::nullopt;  // The end of a band that begins at y.
  bool hollow = false;    // Drawn as a ring: not to be compared with the others.
  std::string hint = {};  // Shown under the pointer.
};

// A line of a chart. Its colour is that of its place, the first, second or third, in every chart of
// a page.
struct ChartSeries {
  std::string name = {};
  int place = 0;
  std::vector<ChartPoint> points = {};  // Ascending x.
};

enum class Scale { logarithmic, from_zero };

struct Chart {
  std::string title = {};
  std::string subtitle = {};
  Scale scale = Scale::logarithmic;  // Of y; x is always logarithmic.
  std::string unit = {};             // Behind the numbers at the axis, such as "%".
  // A line across the chart, with its text.
  std::optional<double> reference = std::nullopt;
  std::string reference_name = {};
  std::vector<ChartSeries> series = {};
};

// The chart as an <svg> element whose colours are CSS variables and classes of the page around it.
// Empty if there is no point to draw.
std::string to_svg(const Chart& chart);

// Text as it may stand in HTML, also in an attribute.
std::string escaped(const std::string& text);

// Values at which an axis from `low` to `high` gets a line: 1, 10, 100 where that gives enough,
// else 1, 2, 5 as well; for an axis from zero, about five round steps.
std::vector<double> ticks(double low, double high, Scale scale);

}  // namespace stretto::bench
