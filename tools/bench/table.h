// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <vector>

#include "tools/bench/line.h"
#include "tools/bench/machine.h"
#include "tools/bench/options.h"

namespace stretto::bench {

// What a run was, for the head of the table.
struct RunFacts {
  Machine machine = {};
  int ranks = 0;
  std::string links = {};  // Communicator::describe_links()
  std::string version = {};
  bool oversubscribed = false;
};

// Texts of the terminal; each ends with a line end.
std::string table_head(const RunFacts& facts, const BenchOptions& options);
std::string operation_head(Collective operation, const BenchOptions& options);
std::string table_row(const Line& line);
// One sentence or two about the lines of one operation; empty if there are none.
std::string summary_sentence(const std::vector<Line>& lines, const std::string& operation);

// Three significant digits: "0.123", "12.3", "1230".
std::string three_digits(double value);

}  // namespace stretto::bench
