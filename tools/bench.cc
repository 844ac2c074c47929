// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "stretto/base/cores.h"
#include "stretto/base/environment.h"
#include "stretto/stretto.h"
#include "tools/run.h"

namespace stretto::tools {
namespace {

constexpr int kUsageError = 2;
constexpr const char* kDescription =
    "Explains how a job's collectives run here: algorithm, segments, and why:\n"
    "stretto bench --explain [OPTIONS]\n";
constexpr const char* kExamples = R"(
Seconds are predicted by a model whose numbers are measured when a job starts whose ranks do not all
share memory, and remembered for a week (STRETTO_LINK_CACHE=off, refresh or a folder).

Examples:
  Four ranks of this host:
    stretto bench --explain -n 4
  The same without shared memory, the links measured anew:
    STRETTO_TRANSPORT=tcp STRETTO_LINK_CACHE=refresh stretto bench --explain -n 4
  One collective, for a program:
    stretto bench --explain --collective all_reduce --json
  As part of a job on several hosts, started by any launcher:
    stretto run --hosts a,b ... -- stretto bench --explain
)";

struct CommandLine {
  bool explain = false;
  bool json = false;
  int ranks = 0;
  std::string collective;
  std::size_t bytes_min = 8;
  std::size_t bytes_max = std::size_t{256} << 20;
};

constexpr std::array kCollectives = {
    Collective::all_reduce, Collective::reduce,     Collective::reduce_scatter,
    Collective::all_gather, Collective::gather,     Collective::scatter,
    Collective::broadcast,  Collective::all_to_all, Collective::barrier};

int usage_error(const std::string& text) {
  fmt::print(stderr, "stretto bench: {}\n", text);
  return kUsageError;
}

std::optional<Collective> find_collective(const std::string& wanted) {
  for (const Collective collective : kCollectives) {
    if (name(collective) == wanted) return collective;
  }
  return std::nullopt;
}

// Neighbouring sizes that run alike are one line.
struct Line {
  std::size_t bytes_min = 0;
  std::size_t bytes_max = 0;
  Explanation explanation;
};

std::vector<Line> lines_of(const Communicator& comm, Collective collective,
                           const CommandLine& command) {
  std::vector<Line> lines;
  const bool sized = collective != Collective::barrier;
  const std::size_t end = sized ? command.bytes_max : command.bytes_min;
  for (std::size_t bytes = command.bytes_min; bytes <= end; bytes *= 4) {
    Explanation explanation = comm.explain(collective, DType::f32, sized ? bytes / 4 : 0);
    const bool same = !lines.empty() && lines.back().explanation.algorithm == explanation.algorithm;
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

void print_line(Collective collective, const Line& line) {
  const Explanation& explanation = line.explanation;
  const std::string size =
      collective == Collective::barrier
          ? ""
          : fmt::format("{} to {}", format_bytes(line.bytes_min), format_bytes(line.bytes_max));
  std::string algorithm = explanation.algorithm;
  if (!explanation.algorithm_registered.empty() &&
      explanation.algorithm_registered != explanation.algorithm) {
    algorithm += fmt::format("; {} if registered", explanation.algorithm_registered);
  }
  fmt::print("  {:<15} {:<20} {}\n", name(collective), size, algorithm);
  if (collective != Collective::barrier) {
    fmt::print("  {:<15} {:<20} at {}: {} segment{} of {}\n", "", "", format_bytes(line.bytes_max),
               explanation.segments, explanation.segments == 1 ? "" : "s",
               format_bytes(explanation.segment_bytes));
  }
  if (!explanation.candidates.empty()) {
    fmt::print("  {:<15} {:<20} predicted at {}: {}\n", "", "", format_bytes(line.bytes_max),
               predictions(explanation));
  }
}

nlohmann::json json_of(Collective collective, const Line& line, int ranks) {
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
          {"reason", line.explanation.reason},
          {"segments", line.explanation.segments},
          {"segment_bytes", line.explanation.segment_bytes},
          {"predicted", candidates},
          {"links", line.explanation.links}};
}

void explain(const Communicator& comm, const CommandLine& command) {
  bool first = true;
  for (const Collective collective : kCollectives) {
    if (!command.collective.empty() && name(collective) != command.collective) continue;
    for (const Line& line : lines_of(comm, collective, command)) {
      if (command.json) {
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

bool is_rank() {
  const Environment& environment = process_environment();
  return environment.get("STRETTO_RANK") || environment.get("RANK") ||
         environment.get("OMPI_COMM_WORLD_RANK") || environment.get("PMI_RANK");
}

int start_ranks(const CommandLine& command, const std::vector<std::string>& arguments) {
  const int ranks = command.ranks > 0 ? command.ranks : std::max(2, usable_cores());
  std::vector<std::string> run = {"-n", std::to_string(ranks), "--no-prefix",
                                  "--", "/proc/self/exe",      "bench"};
  run.insert(run.end(), arguments.begin(), arguments.end());
  return run_command(run);
}

}  // namespace

std::string format_bytes(std::size_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  for (; unit + 1 < kUnits.size() && bytes >= 1024 && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

int bench_command(const std::vector<std::string>& arguments) {
  CommandLine line;
  CLI::App app(kDescription, "stretto bench");
  app.footer(kExamples);
  app.add_flag("--explain", line.explain, "Say how collectives run, and why");
  app.add_flag("--json", line.json, "An object a line instead of a table");
  app.add_option("-n,--ranks", line.ranks, "Ranks to start (default: one per usable core)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--collective", line.collective, "Only this one (default: all)");
  app.add_option("--min-bytes", line.bytes_min, "Smallest buffer (default: 8)")
      ->check(CLI::Range(std::size_t{4}, std::size_t{1} << 40));
  app.add_option("--max-bytes", line.bytes_max, "Largest buffer (default: 256 MiB)")
      ->check(CLI::Range(std::size_t{4}, std::size_t{1} << 40));
  try {
    // CLI11 takes the last argument first.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    return usage_error(error.what());
  }
  if (!line.explain) return usage_error("measures nothing yet; --explain says how things run");
  if (!line.collective.empty() && !find_collective(line.collective)) {
    return usage_error(fmt::format("\"{}\" is no collective", line.collective));
  }
  if (!is_rank()) return start_ranks(line, arguments);
  const auto comm = join();
  if (comm->rank() == 0) explain(*comm, line);
  comm->barrier().wait();
  return 0;
}

}  // namespace stretto::tools
