// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/reporter.h"

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

}  // namespace stretto::bench
