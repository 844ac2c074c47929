// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "stretto/schedule/cost.h"
#include "tests/support/expect_contains.h"
#include "tests/support/files.h"

namespace stretto::schedule {
namespace {

// Divisible by every number of ranks in the table, and by this number minus one.
constexpr std::size_t kBytes = std::size_t{64} * 63 * 15 * 5 * 16;

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::stringstream stream(line);
  std::string cell;
  std::getline(stream, cell, '|');  // Before the first bar.
  while (std::getline(stream, cell, '|')) {
    const auto begin = cell.find_first_not_of(' ');
    const auto end = cell.find_last_not_of(' ');
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return cells;
}

std::string read_document() {
  return read_file(STRETTO_SOURCE_DIR "/docs/internals/algorithms.md");
}

// The cells that the document must have for an algorithm: steps and bytes for each number of ranks.
std::vector<std::string> figures_of(const Algorithm& algorithm,
                                    const std::vector<int>& rank_counts) {
  std::vector<std::string> figures;
  for (const int n : rank_counts) {
    const Cost price = cost(algorithm, n, {.bytes = kBytes});
    const double buffers = static_cast<double>(price.sent_bytes_max) / kBytes;
    figures.push_back(fmt::format("{}, {:.2f}", price.steps, buffers));
  }
  return figures;
}

TEST(AlgorithmsDocument, TableAgreesWithTheModel) {
  std::map<std::string, std::vector<std::string>> rows;
  std::vector<int> rank_counts;
  std::stringstream document(read_document());
  for (std::string line; std::getline(document, line);) {
    const auto cells = cells_of(line);
    if (cells.size() < 3) continue;
    if (cells[0] == "algorithm" && cells[2].starts_with("n = ")) {
      for (std::size_t i = 2; i < cells.size(); ++i) {
        rank_counts.push_back(std::atoi(cells[i].c_str() + 4));
      }
    } else if (!rank_counts.empty()) {
      std::stringstream collectives(cells[1]);
      for (std::string each; std::getline(collectives >> std::ws, each, ',');) {
        rows.emplace(each + " " + cells[0], std::vector(cells.begin() + 2, cells.end()));
      }
    }
  }
  ASSERT_GE(rank_counts.size(), 3) << "docs/internals/algorithms.md has no table of ranks";
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name.starts_with("two_level")) continue;  // What it costs depends on the hosts.
    const std::string key = fmt::format("{} {}", name(algorithm.collective), algorithm.name);
    EXPECT_EQ(rows[key], figures_of(algorithm, rank_counts)) << key;
  }
}

TEST(AlgorithmsDocument, DescribesEveryFamily) {
  const std::string document = read_document();
  for (const Algorithm& algorithm : algorithms()) {
    expect_contains(document, fmt::format("\n## {}\n", algorithm.name));
  }
}

}  // namespace
}  // namespace stretto::schedule
