// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <sstream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "stretto/base/parse_number.h"
#include "tools/commands.h"

namespace stretto::bench {
namespace {

constexpr std::size_t kLargestBytes = std::size_t{1} << 40;
constexpr const char* kDescription =
    "Measures collectives, or explains how they run:\n"
    "stretto bench [COLLECTIVE...|all] [-n RANKS] [OPTIONS]\n"
    "stretto bench --explain [COLLECTIVE] [OPTIONS]\n"
    "stretto bench --compression [--explain] [-n RANKS] [--bytes LIST]\n";
constexpr const char* kExamples = R"(
Starts its own ranks on this host; under a launcher (stretto run, torchrun, mpirun, srun) it joins
that job instead. Collectives: all_reduce (the default), reduce_scatter, all_gather, broadcast,
reduce, gather, scatter, all_to_all, barrier, send_recv. Sizes are those of the larger side on one
rank, bandwidths those of nccl-tests. Inputs are rewritten before each call, outside the time, and
results are checked; a wrong one makes the exit status 1. docs/measurements/benchmarks.md
explains the columns.

Examples:
  How fast an all-reduce is here:
    stretto bench
  Every collective with 4 ranks on a few sizes, as a table:
    stretto bench all -n 4 --bytes 8,64K,16M
  An object a line, of registered buffers only, three times:
    stretto bench all_reduce --buffers registered --repeats 3 --json
  Without shared memory:
    stretto bench all_reduce --transport tcp --max-bytes 64M
  Which algorithm runs at which size, and why:
    stretto bench --explain -n 4
  Whether compressed gradients pay between two hosts, and which (any launcher may start it):
    stretto run -n 2 --hosts node0,node1 -- stretto bench --compression --bytes 1M,25M
)";

constexpr std::array kOperations = {Collective::all_reduce, Collective::reduce_scatter,
                                    Collective::all_gather, Collective::broadcast,
                                    Collective::reduce,     Collective::gather,
                                    Collective::scatter,    Collective::all_to_all,
                                    Collective::barrier,    Collective::point_to_point};

// Options whose text on the command line is converted later.
struct Texts {
  std::vector<std::string> operations = {};
  std::string min_bytes = "8";
  std::string max_bytes = "256M";
  std::string bytes = {};
  std::string dtype = "f32";
  std::string op = "sum";
  std::string buffers = "both";
};

void describe_sizes(CLI::App& app, BenchOptions& options, Texts& texts) {
  app.add_option("--min-bytes", texts.min_bytes, "Smallest size, such as 8 or 64K")
      ->capture_default_str();
  app.add_option("--max-bytes", texts.max_bytes, "Largest size")->capture_default_str();
  app.add_option("--step", options.step, "Factor from size to size")
      ->transform(tools::whole_number(2, 1024))
      ->capture_default_str();
  app.add_option("--bytes", texts.bytes, "These sizes instead, such as 8,64K,16M");
}

void describe_operation(CLI::App& app, BenchOptions& options, Texts& texts) {
  app.add_option("collectives,--collective", texts.operations, "Which to measure; all for all");
  app.add_option("-n,--ranks", options.ranks, "Ranks to start [one per usable core, at least 2]")
      ->transform(tools::whole_number(1, 1024));
  app.add_option("--dtype", texts.dtype, "Type of the elements")->capture_default_str();
  app.add_option("--op", texts.op, "How elements are reduced")->capture_default_str();
  app.add_option(
         "--buffers", texts.buffers,
         "registered (comm.allocate), private, huge (private, in huge pages), both (the first "
         "two) or all")
      ->check(CLI::IsMember({"registered", "private", "huge", "both", "all"}))
      ->capture_default_str();
  app.add_option("--algorithm", options.algorithm, "Instead of what the library chooses");
  app.add_option("--transport", options.transport, "shm or tcp, instead of what the host allows")
      ->check(CLI::IsMember({"shm", "tcp"}));
  auto* in_place = app.add_flag_callback(
      "--in-place", [&] { options.in_place = true; },
      "The output is the input [all_reduce and reduce have a choice]");
  app.add_flag_callback(
         "--out-of-place", [&] { options.in_place = false; },
         "The output is another buffer (all_reduce, reduce)")
      ->excludes(in_place);
}

void describe(CLI::App& app, BenchOptions& options, Texts& texts) {
  app.footer(kExamples);
  describe_operation(app, options, texts);
  describe_sizes(app, options, texts);
  app.add_option("--seconds-per-line", options.seconds_per_line, "For the samples of a line")
      ->check(tools::number_within(0.001, 3600, "seconds"))
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "How often to measure everything")
      ->transform(tools::whole_number(1, 1000))
      ->capture_default_str();
  app.add_flag_callback(
      "--no-pin", [&] { options.pin = false; }, "Do not bind each rank to a core");
  app.add_flag_callback(
      "--no-check", [&] { options.check = false; }, "Do not check the results");
  app.add_flag("--json", options.json, "An object a line instead of a table");
  app.add_flag("--explain", options.explain, "Measure nothing; say how collectives run, and why");
  app.add_flag(
      "--compression", options.compression,
      "Measure steps with compressed gradients of --bytes [1M,25M], and say which pay; with "
      "--explain: what is predicted for their messages");
  app.add_option("--table-terminal", options.table_terminal)->group("");
  app.add_option("--progress-terminal", options.progress_terminal)->group("");
}

template <class Value>
std::optional<Value> find_named(const std::string& wanted, int count) {
  for (int i = 0; i < count; ++i) {
    if (name(static_cast<Value>(i)) == wanted) return static_cast<Value>(i);
  }
  return std::nullopt;
}

std::string set_operations(const Texts& texts, BenchOptions& options) {
  for (const std::string& text : texts.operations) {
    const auto found = std::find_if(kOperations.begin(), kOperations.end(),
                                    [&](Collective each) { return operation_name(each) == text; });
    if (text == "all") {
      options.operations.assign(kOperations.begin(), kOperations.end());
    } else if (found == kOperations.end()) {
      return fmt::format("\"{}\" is no collective", text);
    } else if (std::count(options.operations.begin(), options.operations.end(), *found) == 0) {
      options.operations.push_back(*found);
    }
  }
  if (options.operations.empty() && options.explain) {
    options.operations.assign(kOperations.begin(), kOperations.end() - 1);
  } else if (options.operations.empty()) {
    options.operations = {Collective::all_reduce};
  }
  return {};
}

std::string set_sizes(const Texts& texts, BenchOptions& options) {
  const auto min_bytes = parse_bytes(texts.min_bytes);
  const auto max_bytes = parse_bytes(texts.max_bytes);
  if (!min_bytes) return fmt::format("--min-bytes: \"{}\" is no size", texts.min_bytes);
  if (!max_bytes) return fmt::format("--max-bytes: \"{}\" is no size", texts.max_bytes);
  if (*min_bytes > *max_bytes) return "--min-bytes is more than --max-bytes";
  options.min_bytes = *min_bytes;
  options.max_bytes = *max_bytes;
  std::istringstream list(texts.bytes);
  for (std::string text; std::getline(list, text, ',');) {
    const auto bytes = parse_bytes(text);
    if (!bytes) return fmt::format("--bytes: \"{}\" is no size", text);
    options.bytes.push_back(*bytes);
  }
  return {};
}

// Returns the first of `names` that is on the command line, or null.
const char* first_given(const CLI::App& app, std::initializer_list<const char*> names) {
  const auto* const found =
      std::ranges::find_if(names, [&](const char* name) { return app.count(name) > 0; });
  return found == names.end() ? nullptr : *found;
}

// Returns a sentence about an option that would have no effect, or nothing.
std::string find_unheeded(const CLI::App& app, const Texts& texts, const BenchOptions& options) {
  const char* const of_measuring =
      first_given(app, {"--algorithm", "--buffers", "--in-place", "--out-of-place",
                        "--seconds-per-line", "--repeats", "--no-pin", "--no-check"});
  if ((options.compression || options.explain) && of_measuring != nullptr) {
    return fmt::format(
        "{} is for collectives that are measured, without --explain and --compression",
        of_measuring);
  }
  const char* const of_collectives =
      first_given(app, {"collectives", "--op", "--min-bytes", "--max-bytes", "--step"});
  if (options.compression && (of_collectives != nullptr || texts.dtype != "f32")) {
    return fmt::format("--compression takes gradients of f32 in the sizes of --bytes, and no {}",
                       of_collectives != nullptr ? of_collectives : "other --dtype");
  }
  const auto& named = texts.operations;
  if (options.explain && std::find(named.begin(), named.end(), "send_recv") != named.end()) {
    return "--explain has nothing to say of send_recv, which knows one way only";
  }
  return {};
}

// Sets `options` from `texts`. Returns a sentence about what is wrong, or nothing.
std::string set_from(const Texts& texts, BenchOptions& options) {
  if (std::string mistake = set_operations(texts, options); !mistake.empty()) return mistake;
  if (std::string mistake = set_sizes(texts, options); !mistake.empty()) return mistake;
  const auto dtype = find_named<DType>(texts.dtype, kDTypeCount);
  const auto op = find_named<ReduceOp>(texts.op, kReduceOpCount);
  if (!dtype) return fmt::format("--dtype: \"{}\" is no dtype", texts.dtype);
  if (!op) return fmt::format("--op: \"{}\" is no operation", texts.op);
  options.dtype = *dtype;
  options.op = *op;
  for (const Collective operation : options.operations) {
    if (reduces(operation) && !supports(*op, *dtype)) {
      return fmt::format("{} cannot be reduced by {}; it supports {}", texts.dtype, texts.op,
                         supported_ops(*dtype));
    }
  }
  const bool all = texts.buffers == "all";
  const bool both = texts.buffers == "both" || all;
  if (both || texts.buffers == "registered") options.buffers.push_back(Buffers::registered);
  if (both || texts.buffers == "private") options.buffers.push_back(Buffers::private_memory);
  if (all || texts.buffers == "huge") options.buffers.push_back(Buffers::huge);
  return {};
}

}  // namespace

ParsedOptions parse_options(const std::vector<std::string>& arguments) {
  BenchOptions options;
  Texts texts;
  CLI::App app(kDescription, "stretto bench");
  describe(app, options, texts);
  if (const auto status = tools::parse(app, "bench", arguments)) return {.status = *status};
  std::string mistake = find_unheeded(app, texts, options);
  if (mistake.empty()) mistake = set_from(texts, options);
  if (!mistake.empty()) {
    return {.options = std::nullopt, .status = tools::usage_error("bench", mistake)};
  }
  return {.options = std::move(options), .status = 0};
}

std::optional<std::size_t> parse_bytes(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  std::string_view rest = text;
  const double number = take_number<double>(rest).value_or(0);
  if (!(number > 0)) return std::nullopt;
  std::string unit(rest);
  if (unit.ends_with("iB")) unit.resize(unit.size() - 2);
  if (unit == "B") unit.clear();
  constexpr std::string_view kUnits = "KMGT";
  double factor = 1;
  if (!unit.empty()) {
    const auto letter = static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0])));
    const std::size_t power = kUnits.find(letter);
    if (unit.size() > 1 || power == std::string_view::npos) return std::nullopt;
    factor = std::pow(1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * factor;
  if (bytes < 1 || bytes > static_cast<double>(kLargestBytes)) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

std::string format_bytes(std::size_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  for (; unit + 1 < kUnits.size() && bytes >= 1024 && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

std::string operation_name(Collective operation) {
  if (operation == Collective::point_to_point) return "send_recv";
  return std::string(name(operation));
}

std::vector<std::size_t> sizes_of(const BenchOptions& options) {
  std::vector<std::size_t> sizes = options.bytes;
  if (sizes.empty()) {
    for (std::size_t size = options.min_bytes; size <= options.max_bytes; size *= options.step) {
      sizes.push_back(size);
    }
    sizes.push_back(options.max_bytes);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace stretto::bench
