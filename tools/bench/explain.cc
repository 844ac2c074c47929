// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/rank_program.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stretto/stretto.h"

namespace stretto::bench {
namespace {

// One printed line. Neighbouring sizes that run alike share a line, but each size that the user has
// named has its own.
struct SizeRange {
  std::size_t bytes_min = 0;
  std::size_t bytes_max = 0;
  Explanation explanation;
};

std::vector<SizeRange> lines_of(const Communicator& comm, Collective collective,
                                const BenchOptions& options) {
  std::vector<SizeRange> lines;
  const bool sized = collective != Collective::barrier;
  std::vector<std::size_t> sizes = sizes_of(options);
  if (!sized) sizes.resize(1);
  for (const std::size_t bytes : sizes) {
    Explanation explanation =
        comm.explain(collective, options.dtype, sized ? bytes / size_bytes(options.dtype) : 0);
    const auto runs_alike = [&](const Explanation& last) {
      return last.algorithm == explanation.algorithm &&
             last.algorithm_registered == explanation.algorithm_registered &&
             last.algorithm_huge_pages == explanation.algorithm_huge_pages;
    };
    const bool same =
        !lines.empty() && options.bytes.empty() && runs_alike(lines.back().explanation);
    if (!same) lines.push_back({.bytes_min = bytes, .bytes_max = bytes, .explanation = {}});
    lines.back().bytes_max = bytes;
    lines.back().explanation = std::move(explanation);
  }
  return lines;
}

std::string predictions(const Explanation& explanation) {
  std::string text;
  for (const auto& candidate : explanation.candidates) {
    text += fmt::format("{}{} {:.1f} us", text.empty() ? "" : ", ", candidate.algorithm,
                        candidate.seconds * 1e6);
  }
  return text;
}

void print_line(Collective collective, const SizeRange& line) {
  const Explanation& explanation = line.explanation;
  std::string size;
  if (collective != Collective::barrier) size = format_bytes(line.bytes_min);
  if (line.bytes_min < line.bytes_max) size += " to " + format_bytes(line.bytes_max);
  std::string algorithm = explanation.algorithm;
  if (!explanation.algorithm_registered.empty() &&
      explanation.algorithm_registered != explanation.algorithm) {
    const bool huge_too = explanation.algorithm_huge_pages == explanation.algorithm_registered;
    algorithm += fmt::format("; {} if registered{}", explanation.algorithm_registered,
                             huge_too ? " or in huge pages" : "");
  }
  fmt::print("  {:<15} {:<20} {}\n", name(collective), size, algorithm);
  if (collective != Collective::barrier) {
    fmt::print("  {:<15} {:<20} at {}: {} segment{} of {}{}\n", "", "",
               format_bytes(line.bytes_max), explanation.segments,
               explanation.segments == 1 ? "" : "s", format_bytes(explanation.segment_bytes),
               explanation.lanes > 1 ? fmt::format(", {} at a time", explanation.lanes) : "");
  }
  if (!explanation.candidates.empty()) {
    fmt::print("  {:<15} {:<20} predicted at {}: {}\n", "", "", format_bytes(line.bytes_max),
               predictions(explanation));
  }
}

nlohmann::json json_of(Collective collective, const SizeRange& line, int ranks) {
  nlohmann::json candidates = nlohmann::json::array();
  for (const auto& candidate : line.explanation.candidates) {
    candidates.push_back({{"algorithm", candidate.algorithm}, {"seconds", candidate.seconds}});
  }
  return {{"collective", name(collective)},
          {"ranks", ranks},
          {"bytes_min", line.bytes_min},
          {"bytes_max", line.bytes_max},
          {"algorithm", line.explanation.algorithm},
          {"algorithm_registered", line.explanation.algorithm_registered},
          {"algorithm_huge_pages", line.explanation.algorithm_huge_pages},
          {"reason", line.explanation.reason},
          {"segments", line.explanation.segments},
          {"segment_bytes", line.explanation.segment_bytes},
          {"lanes", line.explanation.lanes},
          {"predicted", candidates},
          {"links", line.explanation.links}};
}

void explain(const Communicator& comm, const BenchOptions& options) {
  bool first = true;
  for (const Collective collective : options.operations) {
    if (collective == Collective::point_to_point) continue;
    for (const SizeRange& line : lines_of(comm, collective, options)) {
      if (options.json) {
        fmt::print("{}\n", json_of(collective, line, comm.size()).dump());
        continue;
      }
      if (first) {
        fmt::print("{} ranks: {}\nlinks: {}\n{}\n\n", comm.size(), comm.describe_links(),
                   line.explanation.links, line.explanation.reason);
      }
      first = false;
      print_line(collective, line);
    }
  }
}

}  // namespace

int run_explaining_rank(const BenchOptions& options) {
  const auto comm = join_by(options);
  if (comm->rank() == 0) explain(*comm, options);
  comm->barrier().wait();
  return 0;
}

}  // namespace stretto::bench
