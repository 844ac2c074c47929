// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/page.h"

#include <gtest/gtest.h>

#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/bench/chart.h"
#include "tools/bench/shape.h"

namespace stretto::bench {
namespace {

Line line_of(std::size_t bytes, const std::string& buffers, double p50_us) {
  Line line{.operation = "all_reduce",
            .ranks = 2,
            .bytes = bytes,
            .count = bytes / 4,
            .dtype = "f32",
            .op = "sum",
            .buffers = buffers,
            .in_place = true,
            .algorithm = "direct<&\">",
            .transport = "shm",
            .version = "1.2.3"};
  line.time = {.p50_us = p50_us, .p99_us = 2 * p50_us, .max_us = 9 * p50_us, .min_us = p50_us / 2};
  line.regime = "near";
  line.check = Check::ok;
  if (bytes >= 1024) line.copy_us = p50_us / 2;
  set_bandwidths(line, bus_factor(Collective::all_reduce, 2));
  return line;
}

std::vector<Line> some_lines() {
  std::vector<Line> lines;
  for (std::size_t bytes = 8; bytes <= 1 << 20; bytes *= 8) {
    const double p50_us = 0.25 + static_cast<double>(bytes) / 1e4;
    lines.push_back(line_of(bytes, "registered", p50_us));
    lines.push_back(line_of(bytes, "private", 3 * p50_us));
  }
  return lines;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

// Whether every element that begins ends, in the right order. Says where not.
std::string first_unbalanced(const std::string& html) {
  const std::set<std::string> voids = {"!doctype", "meta"};
  std::vector<std::string> open;
  for (std::size_t at = 0; (at = html.find('<', at)) != std::string::npos;) {
    const std::size_t end = html.find('>', at);
    if (end == std::string::npos) return "an unended tag";
    const std::string tag = html.substr(at + 1, end - at - 1);
    at = end + 1;
    const bool ends = tag.starts_with("/");
    const std::string name = tag.substr(ends, tag.find_first_of(" \n/", ends) - ends);
    if (ends && (open.empty() || open.back() != name)) return "</" + name + ">";
    if (ends) {
      open.pop_back();
    } else if (!tag.ends_with("/") && !voids.contains(name)) {
      open.push_back(name);
    }
    // What is between them is no markup.
    if (!ends && (name == "script" || name == "style")) at = html.find("</" + name, at);
  }
  return open.empty() ? "" : "<" + open.back() + ">";
}

TEST(Page, HasEveryLineAndIsWellFormed) {
  BenchOptions options;
  options.operations = {Collective::all_reduce};
  options.command = "stretto bench --html <x>";
  const std::vector<Line> lines = some_lines();
  const RunFacts facts{.machine = {.processor = "Some & Other", .cores = 2}, .ranks = 2};
  const std::string html = page(facts, options, lines);
  EXPECT_EQ(first_unbalanced(html), "");
  EXPECT_EQ(count_of(html, "<tr><td>"), lines.size());
  for (const Line& line : lines) {
    EXPECT_NE(html.find("<td>" + format_bytes(line.bytes) + "</td>"), std::string::npos);
    EXPECT_NE(html.find("<td>" + three_digits(line.time.p50_us) + "</td>"), std::string::npos);
  }
  EXPECT_EQ(count_of(html, "<svg"), 3U);
  // A dot for each line in the charts of time and bandwidth, and in that of efficiency where it is.
  EXPECT_EQ(count_of(html, "class=\"dot"), 2 * lines.size() + lines.size() - 6);
  EXPECT_NE(html.find("Some &amp; Other"), std::string::npos);
  EXPECT_EQ(html.find("direct<&"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos) << "needs something from elsewhere";
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST(Page, OtherRegimesAreRings) {
  BenchOptions options;
  options.operations = {Collective::all_reduce};
  std::vector<Line> lines = some_lines();
  EXPECT_EQ(count_of(page({}, options, lines), "dot hollow"), 0U);
  lines.front().regime = "far";
  EXPECT_EQ(count_of(page({}, options, lines), "dot hollow"), 2U);
}

TEST(Page, ABarrierHasNoCharts) {
  BenchOptions options;
  options.operations = {Collective::barrier};
  Line line{.operation = "barrier", .ranks = 2, .buffers = "-"};
  line.time.p50_us = 0.3;
  const std::string html = page({}, options, {line});
  EXPECT_EQ(first_unbalanced(html), "");
  EXPECT_EQ(count_of(html, "<svg"), 0U);
  EXPECT_EQ(count_of(html, "<tr><td>"), 1U);
}

TEST(Chart, OnePointAndNoneAreDrawn) {
  EXPECT_EQ(to_svg({.title = "empty"}), "");
  const std::string svg =
      to_svg({.title = "one", .series = {{.name = "alone", .points = {{.x = 8, .y = 1}}}}});
  EXPECT_EQ(first_unbalanced(svg), "");
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
}

TEST(Chart, TicksAreRound) {
  EXPECT_EQ(ticks(0.1, 1000, Scale::logarithmic), (std::vector<double>{0.1, 1, 10, 100, 1000}));
  EXPECT_EQ(ticks(1, 10, Scale::logarithmic), (std::vector<double>{1, 2, 5, 10}));
  EXPECT_EQ(ticks(0, 108, Scale::from_zero), (std::vector<double>{0, 50, 100}));
  EXPECT_EQ(ticks(0, 9, Scale::from_zero), (std::vector<double>{0, 2, 4, 6, 8}));
}

TEST(Table, ARowSaysWhatTheLineSays) {
  const std::string row = table_row(line_of(65536, "registered", 2));
  for (const char* part : {"64 KiB", "16384", "registered", "2.00", "32.8", "50 %", "near", "ok"}) {
    EXPECT_NE(row.find(part), std::string::npos) << part << " in " << row;
  }
}

TEST(Table, DigitsThatMatter) {
  EXPECT_EQ(three_digits(0.1234), "0.123");
  EXPECT_EQ(three_digits(1.234), "1.23");
  EXPECT_EQ(three_digits(12.34), "12.3");
  EXPECT_EQ(three_digits(1234.4), "1234");
  EXPECT_EQ(three_digits(0), "0");
}

TEST(Table, TheSentenceTellsOfWrongResults) {
  std::vector<Line> lines = some_lines();
  EXPECT_NE(summary_sentence(lines, "all_reduce").find("0.251 us for 8 B"), std::string::npos);
  EXPECT_EQ(summary_sentence(lines, "all_reduce").find("WRONG"), std::string::npos);
  lines[2].check = Check::wrong;
  EXPECT_NE(summary_sentence(lines, "all_reduce").find("1 line has a WRONG"), std::string::npos);
  EXPECT_EQ(summary_sentence(lines, "reduce"), "");
}

TEST(LineJson, HasTheKeysThatOthersRead) {
  const auto object = nlohmann::json::parse(to_json(line_of(65536, "registered", 2)));
  EXPECT_EQ(object.at("system"), "stretto");
  EXPECT_EQ(object.at("operation"), "all_reduce");
  EXPECT_EQ(object.at("bytes"), 65536);
  EXPECT_EQ(object.at("p50_us"), 2);
  EXPECT_EQ(object.at("p99_us"), 4);
  EXPECT_EQ(object.at("algbw_gbps"), 32.768);
  EXPECT_EQ(object.at("efficiency"), 0.5);
  EXPECT_EQ(nlohmann::json::parse(to_json(line_of(8, "private", 2))).at("efficiency"), nullptr);
}

}  // namespace
}  // namespace stretto::bench
