// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "bench/drivers/pattern.h"

#include <algorithm>
#include <array>
#include <vector>

namespace stretto::bench {
namespace {

// A prime: what lands a power of two away from its place is noticed.
constexpr std::size_t kPeriod = 61;
// Periods that are written at a time.
constexpr std::size_t kPeriods = 16;
constexpr int kAll = -1;

using Table = std::array<float, kPeriod * kPeriods>;

float value(std::size_t place, int rank, std::uint64_t iteration) {
  const std::size_t step = place * 7 + static_cast<std::size_t>(rank) * 13;
  return static_cast<float>(step % kPeriod) + static_cast<float>(iteration % 8);
}

// `rank` may be kAll: the sum over all.
Table table_of(std::size_t first, int rank, int ranks, std::uint64_t iteration) {
  Table table{};
  for (std::size_t i = 0; i < table.size(); ++i) {
    const int begin = rank == kAll ? 0 : rank;
    const int end = rank == kAll ? ranks : rank + 1;
    for (int r = begin; r < end; ++r) table[i] += value(first + i, r, iteration);
  }
  return table;
}

// A part of the output: what `rank` has in its input from element `first` on.
struct Part {
  std::size_t begin = 0;
  std::size_t count = 0;
  std::size_t first = 0;
  int rank = 0;
};

std::vector<Part> parts_of(const Job& job, int rank, int ranks) {
  const auto own = static_cast<std::size_t>(rank);
  if (job.operation == "all_reduce") return {{0, job.count, 0, kAll}};
  if (job.operation == "reduce_scatter") return {{0, job.share, own * job.share, kAll}};
  if (job.operation == "broadcast") return {{0, job.count, 0, 0}};
  if (job.operation == "copy") return {{0, job.count, 0, rank}};
  std::vector<Part> parts;
  if (job.operation == "all_gather" || job.operation == "all_to_all") {
    const std::size_t first = job.operation == "all_to_all" ? own * job.share : 0;
    for (int from = 0; from < ranks; ++from) {
      parts.push_back({static_cast<std::size_t>(from) * job.share, job.share, first, from});
    }
  }
  return parts;
}

// The index of the first wrong element of a part, or its count.
std::size_t first_wrong(const float* data, std::size_t count, const Table& table) {
  for (std::size_t begin = 0; begin < count; begin += table.size()) {
    const std::size_t end = std::min(count, begin + table.size());
    if (!std::equal(data + begin, data + end, table.begin())) {
      return begin +
             static_cast<std::size_t>(std::mismatch(data + begin, data + end, table.begin()).first -
                                      (data + begin));
    }
  }
  return count;
}

}  // namespace

void fill_input(const Job& job, int rank, int ranks, std::uint64_t iteration) {
  if (job.operation == "barrier") return;
  if (job.operation == "broadcast" && rank != 0) return;
  const std::size_t count = job.operation == "all_gather" ? job.share : job.count;
  const Table table = table_of(0, rank, ranks, iteration);
  for (std::size_t begin = 0; begin < count; begin += table.size()) {
    std::copy_n(table.begin(), std::min(table.size(), count - begin), job.input + begin);
  }
}

bool output_is_right(const Job& job, int rank, int ranks, std::uint64_t iteration,
                     std::string& problem) {
  for (const Part& part : parts_of(job, rank, ranks)) {
    const Table table = table_of(part.first, part.rank, ranks, iteration);
    const float* data = job.output + part.begin;
    const std::size_t wrong = first_wrong(data, part.count, table);
    if (wrong == part.count) continue;
    problem = "element " + std::to_string(part.begin + wrong) + " is " +
              std::to_string(data[wrong]) + ", not " + std::to_string(table[wrong % table.size()]);
    return false;
  }
  return true;
}

}  // namespace stretto::bench
