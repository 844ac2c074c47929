// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tools/bench/options.h"
#include "tools/bench/table.h"

namespace stretto::bench {
namespace {

// Units of the viewBox. A phone shows it at about three quarters of this width.
constexpr double kWidth = 480;
constexpr double kHeight = 330;
constexpr double kLeft = 50;
constexpr double kRight = 468;
constexpr double kTop = 62;
constexpr double kBottom = 292;

struct Range {
  double low = 0;
  double high = 1;
};

const ChartPoint* find(const ChartSeries& series, double x) {
  for (const ChartPoint& point : series.points) {
    if (point.x == x) return &point;
  }
  return nullptr;
}

class Plot {
 public:
  explicit Plot(const Chart& chart) : chart_(chart) { find_ranges(); }

  std::string svg() const;

 private:
  void find_ranges();
  double x(double value) const;
  double y(double value) const;
  std::string head() const;
  std::string x_axis() const;
  std::string y_axis() const;
  std::string reference() const;
  std::string band(const ChartSeries& series) const;
  std::string line(const ChartSeries& series) const;
  double best_place_for_names() const;
  std::string names() const;

  const Chart& chart_;
  Range x_;
  Range y_;
};

void Plot::find_ranges() {
  const double infinity = std::numeric_limits<double>::infinity();
  x_ = {infinity, 0};
  y_ = {infinity, 0};
  for (const ChartSeries& series : chart_.series) {
    for (const ChartPoint& point : series.points) {
      x_ = {std::min(x_.low, point.x), std::max(x_.high, point.x)};
      y_ = {std::min(y_.low, point.y), std::max(y_.high, point.upper.value_or(point.y))};
    }
  }
  if (chart_.reference) y_.high = std::max(y_.high, *chart_.reference);
  if (x_.low == x_.high) x_ = {x_.low / 2, x_.high * 2};
  if (chart_.scale == Scale::from_zero) {
    y_ = {0, y_.high * 1.08};
  } else {
    // Whole decades leave room for the names of the lines.
    y_.low = std::pow(10, std::floor(std::log10(y_.low)));
    y_.high = std::pow(10, std::ceil(std::log10(y_.high * 1.01)));
  }
}

double Plot::x(double value) const {
  const double share = std::log(value / x_.low) / std::log(x_.high / x_.low);
  return kLeft + 10 + share * (kRight - kLeft - 20);
}

double Plot::y(double value) const {
  const double share = chart_.scale == Scale::from_zero
                           ? value / y_.high
                           : std::log(value / y_.low) / std::log(y_.high / y_.low);
  return kBottom - share * (kBottom - kTop);
}

std::string Plot::head() const {
  return fmt::format(
      "<text class=\"title\" x=\"4\" y=\"18\">{}</text>\n"
      "<text class=\"subtitle\" x=\"4\" y=\"37\">{}</text>\n",
      escaped(chart_.title), escaped(chart_.subtitle));
}

// "8", "4 Ki", "64 Mi": short, because the axis says that they are bytes.
std::string size_label(double bytes) {
  std::string text = format_bytes(static_cast<std::size_t>(bytes));
  text.pop_back();
  if (text.back() == ' ') text.pop_back();
  return text;
}

std::string Plot::x_axis() const {
  std::string text;
  // Steps of 8, 64 or more, so that neighbours do not touch.
  const double octaves = std::log2(x_.high / x_.low);
  const double step = octaves <= 8 ? 2 : octaves <= 14 ? 4 : 16;
  for (double tick = std::exp2(std::ceil(std::log2(x_.low))); tick <= x_.high; tick *= step) {
    text += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text class=\"tick\" x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        x(tick), kTop, kBottom, kBottom + 17, size_label(tick));
  }
  text += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">bytes</text>\n",
                      kRight, kBottom + 34);
  return text;
}

// "100k": no more than fits beside the axis.
std::string short_number(double value) {
  if (value >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

std::string Plot::y_axis() const {
  std::string text;
  for (const double tick : ticks(y_.low, y_.high, chart_.scale)) {
    text += fmt::format(
        "<line class=\"{0}\" x1=\"{1}\" x2=\"{2}\" y1=\"{3:.1f}\" y2=\"{3:.1f}\"/>"
        "<text class=\"tick\" x=\"{4}\" y=\"{5:.1f}\" text-anchor=\"end\">{6}{7}</text>\n",
        tick == 0 ? "axis" : "grid", kLeft, kRight, y(tick), kLeft - 6, y(tick) + 4,
        short_number(tick), escaped(chart_.unit));
  }
  return text;
}

std::string Plot::reference() const {
  if (!chart_.reference) return {};
  return fmt::format(
      "<line class=\"reference\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
      "<text class=\"reference-name\" x=\"{3}\" y=\"{4:.1f}\">{5}</text>\n",
      kLeft, kRight, y(*chart_.reference), kLeft + 6, y(*chart_.reference) - 6,
      escaped(chart_.reference_name));
}

std::string Plot::band(const ChartSeries& series) const {
  std::string there;
  std::string back;
  for (const ChartPoint& point : series.points) {
    if (!point.upper) return {};
    there += fmt::format("{:.1f},{:.1f} ", x(point.x), y(point.y));
    back = fmt::format("{:.1f},{:.1f} ", x(point.x), y(*point.upper)) + back;
  }
  return fmt::format("<polygon class=\"band s{}\" points=\"{}{}\"/>\n", series.place, there, back);
}

std::string Plot::line(const ChartSeries& series) const {
  std::string path;
  std::string dots;
  for (const ChartPoint& point : series.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x(point.x), y(point.y));
    dots += fmt::format(
        "<circle class=\"dot{} s{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" data-hint=\"{}\"/>\n",
        point.hollow ? " hollow" : "", series.place, x(point.x), y(point.y), escaped(point.hint));
  }
  return fmt::format("<path class=\"line s{}\" d=\"{}\"/>\n{}", series.place, path, dots);
}

// Where the lines are furthest apart, so that a name beside its line is read as that line's; of a
// single line its highest point.
double Plot::best_place_for_names() const {
  double best_x = chart_.series.front().points.empty() ? x_.low : 0;
  double best_gap = -1;
  for (const ChartSeries& series : chart_.series) {
    for (const ChartPoint& point : series.points) {
      // At the right edge a name would have to lie on its line.
      if (x(point.x) > kRight - 60 && series.points.size() > 1) continue;
      double gap = kBottom - y(point.y);
      for (const ChartSeries& other : chart_.series) {
        const ChartPoint* there = &other == &series ? nullptr : find(other, point.x);
        if (there != nullptr) gap = std::abs(y(there->y) - y(point.y));
      }
      if (gap > best_gap) {
        best_gap = gap;
        best_x = point.x;
      }
    }
  }
  return best_x;
}

std::string Plot::names() const {
  const double at = best_place_for_names();
  double highest = kBottom;
  for (const ChartSeries& series : chart_.series) {
    if (const ChartPoint* point = find(series, at)) highest = std::min(highest, y(point->y));
  }
  std::string text;
  for (const ChartSeries& series : chart_.series) {
    const ChartPoint* point = find(series, at);
    if (point == nullptr) continue;
    const bool above = y(point->y) <= highest;
    // Beside a line that rises, above or below one that may do both.
    const double aside = chart_.scale == Scale::from_zero ? 0 : above ? -12 : 12;
    const char* anchor = aside == 0 ? "middle" : aside < 0 ? "end" : "start";
    text += fmt::format(
        "<text class=\"name s{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
        series.place, x(at) + aside, std::min(y(point->y) + (above ? -11 : 18), kBottom - 6),
        anchor, escaped(series.name));
  }
  return text;
}

std::string Plot::svg() const {
  std::string text = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                                 kWidth, kHeight, escaped(chart_.title));
  text += head() + x_axis() + y_axis() + reference();
  for (const ChartSeries& series : chart_.series) text += band(series);
  for (const ChartSeries& series : chart_.series) text += line(series);
  return text + names() + "</svg>\n";
}

}  // namespace

std::string to_svg(const Chart& chart) {
  const bool drawn = std::any_of(chart.series.begin(), chart.series.end(),
                                 [](const ChartSeries& series) { return !series.points.empty(); });
  return drawn ? Plot(chart).svg() : "";
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char character : text) {
    switch (character) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += character;
    }
  }
  return result;
}

std::vector<double> ticks(double low, double high, Scale scale) {
  std::vector<double> values;
  if (scale == Scale::from_zero) {
    const double rough = high / 5;
    const double decade = std::pow(10, std::floor(std::log10(rough)));
    double step = 10 * decade;
    for (const double factor : {5.0, 2.0, 1.0}) {
      if (factor * decade >= rough) step = factor * decade;
    }
    for (int i = 0; i * step <= high; ++i) values.push_back(i * step);
    return values;
  }
  const bool few = std::log10(high / low) < 2.5;
  for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high * 1.001;
       decade *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * decade;
      const bool inside = value >= low * 0.999 && value <= high * 1.001;
      if (inside && (factor == 1 || few)) values.push_back(value);
    }
  }
  return values;
}

}  // namespace stretto::bench
