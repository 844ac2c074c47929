// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/reporter.h"

#include <cmath>

#include <fmt/format.h>

namespace stretto::bench {

Reporter::Reporter(const BenchOptions& options, RunFacts facts, std::size_t line_count)
    : options_(options), facts_(std::move(facts)), line_count_(line_count) {
  const auto open = [](const std::string& terminal) {
    return terminal.empty() ? nullptr : std::fopen(terminal.c_str(), "we");
  };
  table_terminal_.reset(open(options.table_terminal));
  progress_terminal_.reset(open(options.progress_terminal));
  if (!options.json) print(table_head(facts_, options));
}

void Reporter::print(const std::string& text) {
  clear_progress();
  std::FILE* file = table_terminal_ ? table_terminal_.get() : stdout;
  fmt::print(file, "{}", text);
  std::fflush(file);
}

void Reporter::clear_progress() {
  if (!progress_terminal_) return;
  fmt::print(progress_terminal_.get(), "\r\x1b[K");
  std::fflush(progress_terminal_.get());
}

void Reporter::start_operation(Collective operation) {
  if (!options_.json) print(operation_head(operation, options_));
}

void Reporter::start_line(const std::string& what) {
  ++started_;
  if (!progress_terminal_) return;
  fmt::print(progress_terminal_.get(), "\r\x1b[K  {} of {}: {} ...", started_, line_count_, what);
  std::fflush(progress_terminal_.get());
}

void Reporter::add(const Line& line) {
  lines_.push_back(line);
  print(options_.json ? to_json(line) + "\n" : table_row(line));
}

void Reporter::note(const std::string& sentence) {
  clear_progress();
  fmt::print(stderr, "stretto bench: {}\n", sentence);
}

void Reporter::finish() {
  clear_progress();
  if (options_.json) return;
  std::string text = "\n";
  for (const Collective operation : options_.operations) {
    text += summary_sentence(lines_, operation_name(operation));
  }
  print(text);
}

namespace {

constexpr const char* kRow =
    "  {:>9} {:>11}  {:<10} {:>8} {:>8} {:>9} {:>8} {:>8} {:>6}  {:<5} {:<6} {}\n";

// Shortens `regime` to fit its column; the JSON has the whole word.
std::string short_regime(const std::string& regime) {
  if (regime == "oversubscribed") return "over";
  return regime == "unknown" ? "-" : regime;
}

std::string percent(const std::optional<double>& share) {
  if (!share) return "-";
  return *share < 0.01 ? "<1 %" : fmt::format("{:.0f} %", *share * 100);
}

template <class Better>
const Line* best(const std::vector<Line>& lines, const std::string& operation, Better&& better) {
  const Line* found = nullptr;
  for (const Line& line : lines) {
    if (line.operation != operation) continue;
    if (found == nullptr || better(line, *found)) found = &line;
  }
  return found;
}

}  // namespace

std::string three_digits(double value) {
  if (!std::isfinite(value)) return "-";
  if (value <= 0) return "0";
  const int whole = static_cast<int>(std::floor(std::log10(value))) + 1;
  return fmt::format("{:.{}f}", value, std::min(3, std::max(0, 3 - whole)));
}

std::string table_head(const RunFacts& facts, const BenchOptions& options) {
  std::string text = fmt::format("stretto {}: {} rank{} on {} usable core{}, {}{}\n", facts.version,
                                 facts.ranks, facts.ranks == 1 ? "" : "s", facts.machine.cores,
                                 facts.machine.cores == 1 ? "" : "s", facts.links,
                                 options.pin ? ", each bound to a core" : "");
  text += fmt::format("{}; {}; {}\n", facts.machine.processor, facts.machine.caches,
                      facts.machine.kernel);
  if (facts.oversubscribed)
    text += "More ranks than cores: they take turns, and times vary more.\n";
  return text;
}

std::string operation_head(Collective operation, const BenchOptions& options) {
  std::string text = fmt::format("\n{}: {}", operation_name(operation), name(options.dtype));
  if (operation == Collective::barrier) text = "\nbarrier";
  if (reduces(operation)) text += fmt::format(" {}", name(options.op));
  const bool choice = operation == Collective::all_reduce || operation == Collective::reduce;
  if (choice) text += options.in_place.value_or(true) ? ", in place" : ", out of place";
  if (operation == Collective::point_to_point) text += ", one way of a message and its return";
  text += "\n";
  text += fmt::format(kRow, "bytes", "count", "buffers", "p50 us", "p99 us", "max us", "GB/s",
                      "bus GB/s", "eff.", "cores", "check", "algorithm");
  return text;
}

std::string table_row(const Line& line) {
  const bool sized = line.bytes > 0;
  return fmt::format(
      kRow, sized ? format_bytes(line.bytes) : "-", sized ? std::to_string(line.count) : "-",
      line.buffers, three_digits(line.time.p50_us), three_digits(line.time.p99_us),
      three_digits(line.time.max_us), sized ? three_digits(line.algorithm_bandwidth) : "-",
      sized ? three_digits(line.bus_bandwidth) : "-", percent(line.efficiency()),
      short_regime(line.regime), check_name(line.check),
      line.algorithm.empty() ? "-" : line.algorithm);
}

std::string summary_sentence(const std::vector<Line>& lines, const std::string& operation) {
  const Line* fastest = best(
      lines, operation, [](const Line& a, const Line& b) { return a.time.p50_us < b.time.p50_us; });
  if (fastest == nullptr) return {};
  if (fastest->bytes == 0) {
    return fmt::format("{}: {} us (p99 {} us).\n", operation, three_digits(fastest->time.p50_us),
                       three_digits(fastest->time.p99_us));
  }
  const Line* widest = best(lines, operation, [](const Line& a, const Line& b) {
    return a.bus_bandwidth > b.bus_bandwidth;
  });
  const Line* largest = best(lines, operation, [](const Line& a, const Line& b) {
    return a.bytes > b.bytes ||
           (a.bytes == b.bytes && a.efficiency().value_or(0) > b.efficiency().value_or(0));
  });
  std::string text =
      fmt::format("{}: {} us for {} (p99 {} us)", operation, three_digits(fastest->time.p50_us),
                  format_bytes(fastest->bytes), three_digits(fastest->time.p99_us));
  if (widest->bus_bandwidth > 0) {
    text += fmt::format("; at best {} GB/s of bus bandwidth, with {} {}",
                        three_digits(widest->bus_bandwidth), format_bytes(widest->bytes),
                        widest->buffers);
  }
  text += ".";
  if (largest->efficiency()) {
    text += fmt::format(" {} {} reach {} of the speed of copies.", format_bytes(largest->bytes),
                        largest->buffers, percent(largest->efficiency()));
  }
  std::size_t wrong = 0;
  for (const Line& line : lines) wrong += line.operation == operation && line.check == Check::wrong;
  if (wrong > 0) {
    text += fmt::format(" {} line{} a WRONG result.", wrong, wrong == 1 ? " has" : "s have");
  }
  return text + "\n";
}

}  // namespace stretto::bench
