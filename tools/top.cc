// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <unistd.h>

#include <optional>
#include <thread>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "stretto/job/live_page.h"
#include "tools/commands.h"
#include "tools/live_rows.h"

namespace stretto::tools {
namespace {

constexpr const char* kDescription =
    "Shows the ranks that run on this host, whoever has started them, and for whom they wait:\n"
    "stretto top [OPTIONS]\n";
constexpr const char* kExamples = R"(
For each rank: its process; how many collectives it begins each second; for which part of its time
operations are waited for; and what it does now. A rank that waits far less than the others, or
stands still while they do not, is marked: they wait for it. Ranks of other hosts are named where a
rank waits for them, and have their own stretto top.

Only processes of the same user are seen; root sees all (in a container with CAP_SYS_PTRACE only).
Not shown are ranks that are threads, and one that is alone in its job. Each process group of
PyTorch is a job of its own here, with ranks of its own. The ranks write these lines once or twice a
second, watched or not. Ends when the last rank has ended. With 0; with 1 if there was no rank.

Examples:
  All jobs of this host, every two seconds:
    stretto top
  What hangs, once:
    stretto top --once
  Which rank is the slow one, over a minute, for a script:
    stretto top --once --interval 60 --json | jq '.jobs[].ranks | min_by(.waiting)'
  On another host:
    ssh node1 stretto top --once
)";

std::string doing(const LiveRow& row) {
  std::string text = row.note.state.doing;
  if (row.is_silent()) {
    text = fmt::format("stopped or without a core for {:.0f} s; before: {}", seconds(row.silent),
                       row.note.state.doing);
  }
  return row.is_late ? "<- the others wait for it; " + text : text;
}

void print_table(const std::vector<LiveRows>& jobs) {
  for (const LiveRows& rows : jobs) {
    const job::LiveRank& who = rows.front().note.who;
    fmt::print("job {} of {} ranks, {} here\n", who.job, who.size, rows.size());
    fmt::print("{:>5} {:>8} {:>13} {:>8}  {}\n", "rank", "pid", "collectives/s", "waiting", "now");
    for (const LiveRow& row : rows) {
      const std::string rate =
          row.collectives_per_second ? fmt::format("{:.1f}", *row.collectives_per_second) : "-";
      const std::string waiting = row.waiting ? fmt::format("{:.0f} %", 100 * *row.waiting) : "-";
      fmt::print("{:>5} {:>8} {:>13} {:>8}  {}\n", row.note.who.rank, row.note.pid, rate, waiting,
                 doing(row));
    }
    fmt::print("\n");
  }
}

void print_json(const std::vector<LiveRows>& jobs) {
  const auto or_null = [](const std::optional<double>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
  };
  nlohmann::json list = nlohmann::json::array();
  for (const LiveRows& rows : jobs) {
    nlohmann::json ranks = nlohmann::json::array();
    for (const LiveRow& row : rows) {
      ranks.push_back({{"rank", row.note.who.rank},
                       {"pid", row.note.pid},
                       {"collectives", row.note.state.collectives},
                       {"collectives_per_second", or_null(row.collectives_per_second)},
                       {"waiting", or_null(row.waiting)},
                       {"late", row.is_late},
                       {"silent_seconds", seconds(row.silent)},
                       {"doing", row.note.state.doing}});
    }
    const job::LiveRank& who = rows.front().note.who;
    list.push_back({{"job", who.job}, {"size", who.size}, {"ranks", std::move(ranks)}});
  }
  fmt::print("{}\n", nlohmann::json{{"jobs", std::move(list)}}.dump());
}

}  // namespace

int top_command(const std::vector<std::string>& arguments) {
  double interval_seconds = 2;
  bool once = false;
  bool json = false;
  CLI::App app(kDescription, "stretto top");
  app.footer(kExamples);
  app.add_option("--interval", interval_seconds, "Seconds between two looks (2)")
      ->check(number_within(1, 86400, "seconds"));
  app.add_flag("--once", once, "Look at one interval, and end");
  app.add_flag("--json", json, "Print one JSON object for each look instead of a table");
  if (const auto status = parse(app, "top", arguments)) return *status;

  std::vector<job::LiveNote> before = job::find_live_notes();
  if (before.empty()) {
    fmt::print(stderr, "stretto top: no rank of a job of several runs here as this user\n");
    return 1;
  }
  const bool clears = !json && !once && ::isatty(STDOUT_FILENO) == 1;
  while (true) {
    std::this_thread::sleep_for(std::chrono::duration<double>(interval_seconds));
    std::vector<job::LiveNote> notes = job::find_live_notes();
    if (notes.empty()) {
      fmt::print(stderr, "stretto top: the last rank has ended\n");
      return 0;
    }
    if (clears) fmt::print("\x1b[H\x1b[2J");
    const std::vector<LiveRows> jobs = live_jobs(notes, before, Clock::now());
    json ? print_json(jobs) : print_table(jobs);
    std::fflush(stdout);
    if (once) return 0;
    before = std::move(notes);
  }
}

}  // namespace stretto::tools
