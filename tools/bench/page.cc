// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/page.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "tools/bench/chart.h"
#include "tools/bench/page_style.h"
#include "tools/bench/statistics.h"

namespace stretto::bench {
namespace {

// All repeats of one size and kind of buffers.
struct Group {
  std::vector<const Line*> lines = {};

  template <class Value>
  double middle(Value&& value) const {
    std::vector<double> values;
    for (const Line* line : lines) values.push_back(value(*line));
    return median(std::move(values));
  }
};

using Groups = std::map<std::string, std::map<std::size_t, Group>>;  // By buffers, by bytes.

Groups groups_of(const std::vector<Line>& lines, const std::string& operation) {
  Groups groups;
  for (const Line& line : lines) {
    if (line.operation == operation && line.bytes > 0) {
      groups[line.buffers][line.bytes].lines.push_back(&line);
    }
  }
  return groups;
}

// The regime of most lines: what was measured in another one is drawn differently.
std::string usual_regime(const std::vector<Line>& lines) {
  std::map<std::string, int> counts;
  for (const Line& line : lines) ++counts[line.regime];
  const auto most = std::max_element(counts.begin(), counts.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  return most == counts.end() ? "" : most->first;
}

std::string hint_of(const Line& line, double p50_us, double p99_us) {
  std::string text =
      fmt::format("{}, {}\np50 {} µs, p99 {} µs\n{} GB/s, bus {} GB/s", format_bytes(line.bytes),
                  line.buffers, three_digits(p50_us), three_digits(p99_us),
                  three_digits(line.algorithm_bandwidth), three_digits(line.bus_bandwidth));
  if (line.efficiency()) text += fmt::format("\n{:.0f} % of copies", 100 * *line.efficiency());
  if (!line.algorithm.empty()) text += "\n" + line.algorithm;
  return text + "\ncores " + line.regime;
}

enum class Figure { time, bus_bandwidth, efficiency };

std::optional<double> value_of(const Group& group, Figure figure) {
  switch (figure) {
    case Figure::time:
      return group.middle([](const Line& line) { return std::max(1e-3, line.time.p50_us); });
    case Figure::bus_bandwidth:
      return group.middle([](const Line& line) { return line.bus_bandwidth; });
    case Figure::efficiency:
      if (!group.lines.front()->efficiency()) return std::nullopt;
      return 100 * group.middle([](const Line& line) { return line.efficiency().value_or(0); });
  }
  return std::nullopt;
}

ChartSeries series_of(const std::string& buffers, const std::map<std::size_t, Group>& groups,
                      Figure figure, const std::string& usual) {
  // A kind of buffers has the same colour in all charts.
  const int place = buffers == "registered" ? 0 : buffers == "private" ? 1 : 2;
  ChartSeries series{.name = buffers, .place = place, .points = {}};
  for (const auto& [bytes, group] : groups) {
    const auto value = value_of(group, figure);
    if (!value) continue;
    const Line& line = *group.lines.front();
    const double p50 = group.middle([](const Line& each) { return each.time.p50_us; });
    const double p99 = group.middle([](const Line& each) { return each.time.p99_us; });
    ChartPoint point{.x = static_cast<double>(bytes), .y = *value, .hint = hint_of(line, p50, p99)};
    if (figure == Figure::time) point.upper = std::max(*value, p99);
    point.hollow = std::any_of(group.lines.begin(), group.lines.end(),
                               [&](const Line* each) { return each->regime != usual; });
    series.points.push_back(std::move(point));
  }
  return series;
}

std::string chart_card(Chart chart, const Groups& groups, Figure figure, const std::string& usual) {
  for (const auto& [buffers, sizes] : groups) {
    chart.series.push_back(series_of(buffers, sizes, figure, usual));
  }
  const std::string svg = to_svg(chart);
  return svg.empty() ? "" : "<div class=\"card\">\n" + svg + "</div>\n";
}

std::string charts(const Groups& groups, const std::string& usual) {
  if (groups.empty()) return {};
  std::string text = "<div class=\"charts\">\n";
  text += chart_card({.title = "Time",
                      .subtitle = "µs, median; shaded up to the 99th percentile",
                      .scale = Scale::logarithmic},
                     groups, Figure::time, usual);
  text += chart_card({.title = "Bus bandwidth", .subtitle = "GB/s", .scale = Scale::from_zero},
                     groups, Figure::bus_bandwidth, usual);
  text += chart_card({.title = "Efficiency",
                      .subtitle = "time of all ranks copying as much, over time of the all-reduce",
                      .scale = Scale::from_zero,
                      .unit = " %",
                      .reference = 100,
                      .reference_name = "as fast as copies"},
                     groups, Figure::efficiency, usual);
  return text + "</div>\n";
}

std::string table_of(const std::vector<Line>& lines, const std::string& operation) {
  std::string text =
      "<details open><summary>All lines</summary><div class=\"scroll\"><table>\n<thead><tr>"
      "<th>bytes</th><th class=\"text\">buffers</th><th>p50 µs</th><th>p99 µs</th><th>max µs</th>"
      "<th>GB/s</th><th>bus GB/s</th><th>of copies</th><th class=\"text\">cores</th>"
      "<th class=\"text\">check</th><th class=\"text\">algorithm</th></tr></thead>\n<tbody>\n";
  for (const Line& line : lines) {
    if (line.operation != operation) continue;
    const auto efficiency = line.efficiency();
    text += fmt::format(
        "<tr><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
        "<td>{}</td><td>{}</td><td class=\"text\">{}</td><td class=\"text{}\">{}</td>"
        "<td class=\"text\">{}</td></tr>\n",
        line.bytes > 0 ? format_bytes(line.bytes) : "-", escaped(line.buffers),
        three_digits(line.time.p50_us), three_digits(line.time.p99_us),
        three_digits(line.time.max_us), three_digits(line.algorithm_bandwidth),
        three_digits(line.bus_bandwidth),
        efficiency ? fmt::format("{:.0f} %", 100 * *efficiency) : "-", escaped(line.regime),
        line.check == Check::wrong ? " wrong" : "", check_name(line.check),
        escaped(line.algorithm));
  }
  return text + "</tbody></table></div></details>\n";
}

// A page has letters that a terminal may lack.
std::string with_micro_sign(std::string text) {
  for (std::size_t at = 0; (at = text.find(" us", at)) != std::string::npos; ++at) {
    text.replace(at, 3, " µs");
  }
  return text;
}

std::string tile(const std::string& value, const std::string& meaning) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escaped(value),
                     escaped(meaning));
}

// The figures that people look for first, of the first operation that has sizes.
std::string tiles(const std::vector<Line>& lines) {
  const auto sized =
      std::find_if(lines.begin(), lines.end(), [](const Line& line) { return line.bytes > 0; });
  if (sized == lines.end()) return {};
  const Line* fastest = &*sized;
  const Line* widest = &*sized;
  const Line* closest = nullptr;
  for (const Line& line : lines) {
    if (line.operation != sized->operation) continue;
    if (line.time.p50_us < fastest->time.p50_us) fastest = &line;
    if (line.bus_bandwidth > widest->bus_bandwidth) widest = &line;
    const bool larger = closest == nullptr || line.bytes > closest->bytes ||
                        (line.bytes == closest->bytes && line.efficiency() > closest->efficiency());
    if (line.efficiency() && larger) closest = &line;
  }
  std::string text = "<div class=\"tiles\">\n";
  text += tile(three_digits(fastest->time.p50_us) + " µs",
               fmt::format("{} of {}", fastest->operation, format_bytes(fastest->bytes)));
  text += tile(three_digits(widest->bus_bandwidth) + " GB/s",
               fmt::format("bus bandwidth, {} {}", format_bytes(widest->bytes), widest->buffers));
  if (closest != nullptr) {
    text += tile(fmt::format("{:.0f} %", 100 * *closest->efficiency()),
                 fmt::format("of the speed of copies, {} {}", format_bytes(closest->bytes),
                             closest->buffers));
  }
  return text + "</div>\n";
}

std::string facts_list(const RunFacts& facts) {
  const auto row = [](const std::string& name, const std::string& value) {
    return value.empty() ? "" : fmt::format("<dt>{}</dt><dd>{}</dd>\n", name, escaped(value));
  };
  return "<dl>\n" + row("Processor", facts.machine.processor) +
         row("Caches", facts.machine.caches) + row("System", facts.machine.kernel) +
         row("Ranks", fmt::format("{} on {} usable cores{}", facts.ranks, facts.machine.cores,
                                  facts.oversubscribed ? ", taking turns" : "")) +
         row("Links", facts.links) + row("stretto", facts.version) + "</dl>\n";
}

std::string reading(const std::string& usual) {
  return fmt::format(
      "<h2>How to read this</h2>\n<p>Each call was made on an input that had just been rewritten, "
      "on all ranks at the same moment; its time is that of the slowest rank. Calls under 2 µs "
      "were "
      "timed in batches of 100, their percentiles singly. Bandwidths are in 10<sup>9</sup> bytes a "
      "second, with the factors of nccl-tests. Most lines were measured with the cores <i>{}</i>; "
      "points drawn as rings were not, and are not to be compared with the others. Copies are the "
      "better "
      "of memcpy and of stores past the cache, by all ranks at once, between the samples; inside "
      "the "
      "caches an all-reduce in place can be faster, because it touches less memory.</p>\n",
      escaped(usual));
}

}  // namespace

std::string page(const RunFacts& facts, const BenchOptions& options,
                 const std::vector<Line>& lines) {
  const std::string usual = usual_regime(lines);
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta "
      "name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>stretto bench: "
      "{} ranks</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
      facts.ranks, kPageStyle);
  text += fmt::format("<h1>stretto bench</h1>\n<p class=\"muted\"><code>{}</code></p>\n",
                      escaped(facts.command));
  text += tiles(lines) + facts_list(facts);
  for (const Collective operation : options.operations) {
    const std::string name = operation_name(operation);
    const std::string sentence = summary_sentence(lines, name);
    if (sentence.empty()) continue;
    text += fmt::format("<h2>{}</h2>\n<p>{}</p>\n", name,
                        with_micro_sign(escaped(sentence.substr(name.size() + 2))));
    text += charts(groups_of(lines, name), usual) + table_of(lines, name);
  }
  text += reading(usual);
  return text +
         fmt::format("</main>\n<div id=\"hint\"></div>\n<script>{}</script>\n</body>\n</html>\n",
                     kPageScript);
}

}  // namespace stretto::bench
