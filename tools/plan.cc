// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/commands.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "stretto/base/parse_number.h"
#include "stretto/execution/pipeline.h"
#include "stretto/group/selector.h"
#include "stretto/schedule/cost.h"
#include "stretto/schedule/print.h"
#include "stretto/schedule/verify/verify.h"

namespace stretto::tools {
namespace {

using execution::PipelineDesign;
using schedule::Access;
using schedule::Algorithm;
using schedule::Order;
using schedule::Schedule;

// Up to this many ranks, proving and printing a schedule takes a moment. For many more, the
// schedules of all ranks would fill the memory.
constexpr int kRanksMax = 256;
// Up to this many ranks, prices without a schedule take a few seconds at most.
constexpr int kPricedRanksMax = 1'000'000;
constexpr int kRanksDefault = 4;
constexpr int kSlicesMax = 64;
constexpr std::int64_t kBytesMax = std::int64_t{1} << 40;

constexpr const char* kDescription =
    "Prints the schedule of a collective, proves it for this number of ranks, and prices it:\n"
    "stretto plan COLLECTIVE ALGORITHM -n RANKS [OPTIONS]\n"
    "stretto plan COLLECTIVE -n RANKS [OPTIONS]: the prices of those with messages among which a\n"
    "job of up to a million ranks chooses, and of ring\n";
constexpr const char* kExamples = R"(
Times are modelled from the link's latency and bandwidth, not measured.

Examples:
  Which algorithms there are:
    stretto plan --list
  A ring of four, all ranks side by side:
    stretto plan all_reduce ring -n 4
  What rank 2 does in it, and the price of 25 MiB on a 25 Gbit/s link:
    stretto plan all_reduce ring -n 4 --rank 2 --bytes 26214400 --gbit 25
  Everybody's data on its way to rank 2:
    stretto plan gather binomial_tree -n 6 --root 2
  Nine ranks on three hosts that are not of one size:
    stretto plan all_reduce two_level --hosts 3+5+1
  What an all-reduce of 64 MiB costs on 12500 hosts of 8 ranks:
    stretto plan all_reduce -n 100000 --per-host 8 --bytes 67108864 --gbit 100
  How slices of a gradient on a device go through the five streams of Fairring:
    stretto plan --streams fairring
)";

struct CommandLine {
  std::string collective;
  std::string algorithm;
  int ranks = 0;  // 0: as many as the hosts have, else kRanksDefault.
  int rank = -1;
  int root = 0;
  std::string hosts;                        // "3+5+1": ranks per host. Empty: all are on one.
  int per_host = 0;                         // Ranks on each host, if equal; 0: see `hosts`.
  std::vector<std::int32_t> host_of_ranks;  // The host of each rank, from either of these.
  std::size_t bytes = 1 << 20;
  double gbit_per_second = 10;
  double latency_us = 10;
  double local_gbit_per_second = 80;  // Between ranks of one host.
  double local_latency_us = 1;
  std::string pipeline;
  int slots = 2;
  int slices = 6;
  bool list = false;
  bool json = false;
};

// Returns "staged, singa, fairring".
std::string pipeline_names() {
  std::vector<std::string_view> names;
  for (const auto& design : execution::pipelines()) names.push_back(design.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

void describe(CLI::App& app, CommandLine& line) {
  const CLI::Validator bandwidth = number_within(1e-6, 1e6, "Gbit/s");
  const CLI::Validator latency = number_within(0, 1e9, "microseconds");
  app.footer(kExamples);
  app.add_option("collective", line.collective, "all_reduce, reduce_scatter, all_gather, ...");
  app.add_option("algorithm", line.algorithm, "ring, direct, ... (see --list)");
  app.add_option("-n,--ranks", line.ranks,
                 fmt::format("Number of ranks [{}, or all ranks of --hosts]", kRanksDefault))
      ->transform(whole_number(1, kPricedRanksMax));
  app.add_option("--hosts", line.hosts, "Ranks on each host: 3+5+1 [all on one]");
  app.add_option("--per-host", line.per_host, "The same where all hosts but the last have as many")
      ->transform(whole_number(1, kPricedRanksMax));
  app.add_option("--rank", line.rank, "Print the steps of this rank only")
      ->transform(whole_number(0, kRanksMax - 1));
  app.add_option("--root", line.root, "Root of a broadcast, reduce, gather or scatter")
      ->transform(whole_number(0, kPricedRanksMax - 1))
      ->capture_default_str();
  app.add_option("--bytes", line.bytes, "Bytes of a rank's input or output, the longest of all")
      ->transform(whole_number(0, kBytesMax))
      ->capture_default_str();
  app.add_option("--gbit", line.gbit_per_second, "Bandwidth of a link, Gbit/s each way")
      ->check(bandwidth)
      ->capture_default_str();
  app.add_option("--latency-us", line.latency_us, "Latency of a link, microseconds")
      ->check(latency)
      ->capture_default_str();
  app.add_option("--local-gbit", line.local_gbit_per_second,
                 "With --hosts or --per-host: bandwidth inside a host, Gbit/s each way")
      ->check(bandwidth)
      ->capture_default_str();
  app.add_option("--local-latency-us", line.local_latency_us,
                 "With --hosts or --per-host: latency inside a host, microseconds")
      ->check(latency)
      ->capture_default_str();
  app.add_option("--streams", line.pipeline,
                 fmt::format("Instead, the stages of a pipeline: {}", pipeline_names()));
  app.add_option("--slots", line.slots, "With --streams: slices in flight")
      ->transform(whole_number(1, kSlicesMax))
      ->capture_default_str();
  app.add_option("--slices", line.slices, "With --streams: how many to show")
      ->transform(whole_number(1, kSlicesMax))
      ->capture_default_str();
  app.add_flag("--list", line.list, "List collectives and algorithms");
  app.add_flag("--json", line.json, "Print one JSON object instead of text");
}

std::string_view name(Access access) {
  return access == Access::messages ? "messages"
         : access == Access::mapped ? "mapped memory"
                                    : "mapped memory inside hosts, messages between";
}

std::string_view name(Order order) {
  switch (order) {
    case Order::canonical:
      return "canonical";
    case Order::fixed:
      return "fixed";
    case Order::none:
      return "none";
  }
  return "unknown";
}

int list_algorithms() {
  for (const Algorithm& algorithm : schedule::algorithms()) {
    fmt::print("{:<16} {:<20} by {:<14} order {}\n", stretto::name(algorithm.collective),
               algorithm.name, name(algorithm.access), name(algorithm.order));
  }
  return 0;
}

// Sets the number of ranks and the host of each. Returns what is wrong with the options, if
// anything.
std::optional<std::string> settle_ranks(CommandLine& line) {
  if (line.per_host > 0) {
    if (!line.hosts.empty()) return "--hosts and --per-host say the same: give one";
    if (line.ranks == 0) line.ranks = kRanksDefault;
    for (int r = 0; r < line.ranks; ++r) line.host_of_ranks.push_back(r / line.per_host);
  }
  std::string_view rest = line.hosts;
  for (std::int32_t host = 0; !rest.empty(); ++host) {
    const int on_host = take_number<int>(rest).value_or(0);
    const bool separated = rest.empty() || (rest.front() == '+' && rest.size() > 1);
    if (on_host < 1 || on_host > kRanksMax || !separated) {
      return fmt::format("--hosts takes ranks per host such as 3+5+1, not \"{}\"", line.hosts);
    }
    line.host_of_ranks.insert(line.host_of_ranks.end(), on_host, host);
    if (line.host_of_ranks.size() > kRanksMax) {
      return fmt::format("--hosts has more than {} ranks", kRanksMax);
    }
    rest.remove_prefix(std::min<std::size_t>(1, rest.size()));
  }
  const int on_hosts = static_cast<int>(line.host_of_ranks.size());
  if (line.ranks == 0) line.ranks = on_hosts == 0 ? kRanksDefault : on_hosts;
  if (on_hosts != 0 && on_hosts != line.ranks) {
    return fmt::format("--hosts has {} ranks, and --ranks says {}", on_hosts, line.ranks);
  }
  if (line.rank >= line.ranks || line.root >= line.ranks) {
    return fmt::format("--rank and --root must be below {}", line.ranks);
  }
  return std::nullopt;
}

std::string waits_text(const PipelineDesign& design, const PipelineDesign::Stage& stage,
                       int slots) {
  std::vector<std::string> texts;
  for (const auto& wait : stage.waits) {
    const auto& name = design.stages[static_cast<std::size_t>(wait.stage)].name;
    texts.push_back(wait.of_last_lap ? fmt::format("{} of slice -{}", name, slots)
                                     : std::string(name));
  }
  return texts.empty() ? "-" : fmt::format("{}", fmt::join(texts, ", "));
}

std::string staging_text(const PipelineDesign& design, const PipelineDesign::Stage& stage) {
  std::vector<std::string_view> names;
  for (const int buffer : stage.uses) {
    names.push_back(design.staging[static_cast<std::size_t>(buffer)]);
  }
  return names.empty() ? "-" : fmt::format("{}", fmt::join(names, ", "));
}

// Returns for each stream a line that shows which slice is on it when, in units of a stage.
std::vector<std::string> timeline(const PipelineDesign& design, int slots, int slices) {
  std::vector<std::string> streams(design.streams.size());
  std::vector<std::vector<std::size_t>> ends(static_cast<std::size_t>(slices));
  for (int slice = 0; slice < slices; ++slice) {
    auto& own = ends[static_cast<std::size_t>(slice)];
    for (const auto& stage : design.stages) {
      std::string& stream = streams[static_cast<std::size_t>(stage.stream)];
      std::size_t begin = stream.size() / 2;
      for (const auto& wait : stage.waits) {
        if (wait.of_last_lap && slice < slots) continue;
        const auto& lap = wait.of_last_lap ? ends[static_cast<std::size_t>(slice - slots)] : own;
        begin = std::max(begin, lap[static_cast<std::size_t>(wait.stage)]);
      }
      while (stream.size() < begin * 2) stream += " .";
      stream += fmt::format(" {}", slice % 10);
      own.push_back(begin + 1);
    }
  }
  return streams;
}

// Returns what `--streams` prints: the stages of a pipeline, what each waits for, and how slices go
// through it if all stages take equally long. Empty if there is no such pipeline.
std::string describe_pipeline(const std::string& name, int slots, int slices) {
  const auto all = execution::pipelines();
  const auto design = std::ranges::find(all, name, &PipelineDesign::name);
  if (design == all.end()) return {};
  std::string text = fmt::format(
      "pipeline {}: {} stages on {} streams, {} slots in each of: {}\n\n", design->name,
      design->stages.size(), design->streams.size(), slots, fmt::join(design->staging, ", "));
  constexpr const char* kRow = "{:<15} {:<15} {:<14} {:<34} {}\n";
  text += fmt::format(kRow, "stage", "stream", "staging", "waits for", "does");
  for (const auto& stage : design->stages) {
    text +=
        fmt::format(kRow, stage.name, design->streams[static_cast<std::size_t>(stage.stream)],
                    staging_text(*design, stage), waits_text(*design, stage, slots), stage.does);
  }
  text += fmt::format("\n{} slices, if every stage takes as long:\n", slices);
  const auto lines = timeline(*design, slots, slices);
  for (std::size_t stream = 0; stream < lines.size(); ++stream) {
    text += fmt::format("{:<15}{}\n", design->streams[stream], lines[stream]);
  }
  return text;
}

int report_pipeline(const CommandLine& line) {
  const std::string text = describe_pipeline(line.pipeline, line.slots, line.slices);
  if (text.empty()) {
    return usage_error("plan", fmt::format("there is no pipeline \"{}\", but: {}", line.pipeline,
                                           pipeline_names()));
  }
  fmt::print("{}", text);
  return 0;
}

const Algorithm* find(const CommandLine& line) {
  for (const Algorithm& algorithm : schedule::algorithms()) {
    if (stretto::name(algorithm.collective) == line.collective &&
        algorithm.name == line.algorithm) {
      return &algorithm;
    }
  }
  return nullptr;
}

schedule::LinkCost link_of(double latency_us, double gbit_per_second) {
  return {.latency_seconds = latency_us * 1e-6, .seconds_per_byte = 8e-9 / gbit_per_second};
}

std::optional<Collective> collective_of(const std::string& called) {
  for (int number = 0; number < kCollectiveCount; ++number) {
    const auto collective = static_cast<Collective>(number);
    if (collective != Collective::point_to_point && stretto::name(collective) == called) {
      return collective;
    }
  }
  return std::nullopt;
}

// Prints the prices by which a communicator chooses an algorithm: closed formulas, without a
// schedule.
int report_prices(Collective collective, const CommandLine& line) {
  group::LinkModel links;
  links.network = link_of(line.latency_us, line.gbit_per_second);
  links.local = line.host_of_ranks.empty()
                    ? links.network
                    : link_of(line.local_latency_us, line.local_gbit_per_second);
  // Ranks of a host share memory; on a single host no message is sent.
  const int hosts = line.host_of_ranks.empty() ? line.ranks : line.host_of_ranks.back() + 1;
  const bool is_one_host = hosts == 1 && line.ranks > 1;
  const group::Selector selector({.rank_count = line.ranks,
                                  .hosts = line.host_of_ranks,
                                  .links = links,
                                  .has_teams = hosts > 1 && hosts < line.ranks});
  const OperationDescriptor operation{.collective = collective,
                                      .dtype = DType::u8,
                                      .root = line.root,
                                      .count = collective == Collective::barrier ? 0 : line.bytes};
  std::vector<group::Selector::Candidate> prices = selector.candidates(operation, true);
  for (const auto& other : selector.others(operation)) prices.push_back(other);
  if (line.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& price : prices) {
      list.push_back({{"algorithm", price.algorithm->name},
                      {"order", name(price.algorithm->order)},
                      {"modelled_seconds", price.seconds}});
    }
    fmt::print("{}\n", nlohmann::json{{"collective", line.collective},
                                      {"ranks", line.ranks},
                                      {"bytes", line.bytes},
                                      {"prices", list}}
                           .dump());
    return 0;
  }
  const std::string size = operation.count == 0 ? "" : fmt::format(" of {} bytes", line.bytes);
  fmt::print("{}{} by {} ranks: modelled, {}\n", line.collective, size, line.ranks,
             is_one_host ? "where they do not share memory, as ranks of one host do"
                         : "the one that is chosen first");
  for (const auto& price : prices) {
    fmt::print("{:<20} {:>14.1f} us   order {}\n", price.algorithm->name, price.seconds * 1e6,
               name(price.algorithm->order));
  }
  return 0;
}

// Returns "3+5+1", as --hosts takes it. Empty if all ranks are on one host.
std::string ranks_per_host(const std::vector<std::int32_t>& host_of_ranks) {
  std::vector<int> counts;
  for (const std::int32_t host : host_of_ranks) {
    counts.resize(static_cast<std::size_t>(host) + 1);  // Hosts come one after the other.
    ++counts.back();
  }
  return fmt::format("{}", fmt::join(counts, "+"));
}

int report(const Algorithm& algorithm, const CommandLine& line) {
  const std::vector<Schedule> schedules =
      algorithm.build_all(line.ranks, line.root, line.host_of_ranks);
  const Status proof = schedule::verify(schedules);
  const schedule::Cost cost = schedule::cost(
      schedules, {.bytes = line.bytes,
                  .segment_bytes = 0,
                  .link = link_of(line.latency_us, line.gbit_per_second),
                  .local_link = link_of(line.local_latency_us, line.local_gbit_per_second),
                  .hosts = line.host_of_ranks});
  const std::string text = line.rank >= 0
                               ? schedule::print(schedules[static_cast<std::size_t>(line.rank)])
                               : schedule::print(schedules);
  if (line.json) {
    const nlohmann::json object{{"collective", line.collective},
                                {"algorithm", line.algorithm},
                                {"ranks", line.ranks},
                                {"hosts", ranks_per_host(line.host_of_ranks)},
                                {"access", name(algorithm.access)},
                                {"order", name(algorithm.order)},
                                {"bytes", line.bytes},
                                {"modelled_seconds", cost.seconds},
                                {"steps", cost.steps},
                                {"sent_bytes_max", cost.sent_bytes_max},
                                {"proved", proof.ok()},
                                {"refusal", std::string(proof.message())},
                                {"schedule", text}};
    fmt::print("{}\n", object.dump());
  } else {
    fmt::print("{}\n", text);
    fmt::print("proof   {}\n", proof.ok() ? "every output holds what it must" : proof.message());
    fmt::print("order   {}\n", name(algorithm.order));
    fmt::print("price   {:.1f} us modelled for {} bytes, {} steps, {} bytes by the busiest rank\n",
               cost.seconds * 1e6, line.bytes, cost.steps, cost.sent_bytes_max);
  }
  return proof.ok() ? 0 : 1;
}

}  // namespace

int plan_command(const std::vector<std::string>& arguments) {
  CommandLine line;
  CLI::App app(kDescription, "stretto plan");
  describe(app, line);
  if (const auto status = parse(app, "plan", arguments)) return *status;
  if (line.json && (line.list || !line.pipeline.empty())) {
    return usage_error("plan", "--list and --streams print no JSON");
  }
  const auto is_given = [&](const char* name) { return app.count(name) > 0; };
  if (line.pipeline.empty() && (is_given("--slots") || is_given("--slices"))) {
    return usage_error("plan", "--slots and --slices are for --streams");
  }
  if (line.algorithm.empty() && is_given("--rank")) {
    return usage_error("plan", "--rank is for the schedule of one algorithm");
  }
  if (line.list) return list_algorithms();
  if (!line.pipeline.empty()) return report_pipeline(line);
  const auto collective = collective_of(line.collective);
  if (line.algorithm.empty() && collective) {
    if (const auto fault = settle_ranks(line)) return usage_error("plan", *fault);
    return report_prices(*collective, line);
  }
  if (line.algorithm.empty()) {
    return usage_error("plan", "which collective, and by which algorithm? stretto plan --list");
  }
  if (line.ranks > kRanksMax) {
    return usage_error("plan", fmt::format("a schedule is made for up to {} ranks; without an "
                                           "algorithm, prices are told of more",
                                           kRanksMax));
  }
  const Algorithm* algorithm = find(line);
  if (algorithm == nullptr) {
    return usage_error("plan",
                       fmt::format("there is no \"{} {}\": stretto plan --list shows what there is",
                                   line.collective, line.algorithm));
  }
  if (const auto fault = settle_ranks(line)) return usage_error("plan", *fault);
  return report(*algorithm, line);
}

}  // namespace stretto::tools
