// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tools/bench/table.h"

namespace stretto::bench {

// What rank 0 tells while it measures: the table or lines of JSON on standard output, and the
// progress on a terminal.
class Reporter {
 public:
  Reporter(const BenchOptions& options, RunFacts facts, std::size_t line_count);

  void start_operation(Collective operation);
  void start_line(const std::string& what);
  void add(const Line& line);
  // Something that a reader has to know, on standard error.
  void note(const std::string& sentence);
  // The sentences below the table.
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
