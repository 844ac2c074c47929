// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tools/bench/line.h"
#include "tools/bench/options.h"

namespace stretto::bench {

// The facts about a run that stand above the table.
struct RunFacts {
  Machine machine = {};
  int ranks = 0;
  std::string links = {};  // Communicator::describe_links()
  std::string version = {};
  bool oversubscribed = false;
};

// Texts for the terminal; each ends with a line end.
std::string table_head(const RunFacts& facts, const BenchOptions& options);
std::string operation_head(Collective operation, const BenchOptions& options);
std::string table_row(const Line& line);
// One sentence or two about the lines of one operation; empty if there are none.
std::string summary_sentence(const std::vector<Line>& lines, const std::string& operation);

// Returns `value` with three significant digits: "0.123", "12.3", "1230".
std::string three_digits(double value);

// What rank 0 prints while it measures: the table or lines of JSON on standard output, and the
// progress on a terminal.
class Reporter {
 public:
  Reporter(const BenchOptions& options, RunFacts facts, std::size_t line_count);

  void start_operation(Collective operation);
  void start_line(const std::string& what);
  void add(const Line& line);
  // Prints a sentence that readers must not miss to standard error.
  void note(const std::string& sentence);
  // Prints the sentences below the table.
  void finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  void clear_progress();
  void print(const std::string& text);

  const BenchOptions& options_;
  RunFacts facts_;
  std::size_t line_count_;
  std::vector<Line> lines_ = {};
  std::size_t started_ = 0;
  std::unique_ptr<std::FILE, Close> table_terminal_;
  std::unique_ptr<std::FILE, Close> progress_terminal_;
};

}  // namespace stretto::bench
