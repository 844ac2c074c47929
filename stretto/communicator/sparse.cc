// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/sparse.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "stretto/communicator/all_gather_value.h"
#include "stretto/communicator/arguments.h"
#include "stretto/execution/shares.h"

namespace stretto {
namespace {

using communicator::Caller;

// What a rank says before its rows move. All zero but `fits`, if they do not.
struct Announcement {
  std::uint64_t rows = 0;
  std::uint64_t row_elements = 0;
  std::uint64_t fits = 0;
};

// Everybody comes to the same conclusion from the same announcements.
std::vector<std::size_t> numbers_of_rows(const Caller& caller, Communicator& comm,
                                         const Announcement& own, const SparseOptions& options) {
  const std::vector<Announcement> all = communicator::all_gather_value(comm, own, options.timeout);
  std::vector<std::size_t> counts;
  for (const Announcement& announcement : all) {
    if (announcement.fits == 0) {
      refuse(caller, fmt::format("rank {} has values that are not row_elements for each of its "
                                 "rows",
                                 counts.size()));
    }
    if (announcement.row_elements != all.front().row_elements) {
      refuse(caller,
             fmt::format("rows have {} elements on rank 0 and {} on rank {}",
                         all.front().row_elements, announcement.row_elements, counts.size()));
    }
    counts.push_back(announcement.rows);
  }
  return counts;
}

// Each row once, in ascending order; equal ones added up in the order in which they come.
template <class T>
SparseRows<T> add_up(const SparseRows<T>& rows, std::size_t row_elements, T divisor) {
  std::vector<std::size_t> order(rows.rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return rows.rows[i]; });
  SparseRows<T> result;
  for (const std::size_t i : order) {
    const auto from = rows.values.begin() + static_cast<std::ptrdiff_t>(i * row_elements);
    if (result.rows.empty() || result.rows.back() != rows.rows[i]) {
      result.rows.push_back(rows.rows[i]);
      result.values.insert(result.values.end(), from,
                           from + static_cast<std::ptrdiff_t>(row_elements));
      continue;
    }
    const auto to = result.values.end() - static_cast<std::ptrdiff_t>(row_elements);
    for (std::size_t e = 0; e < row_elements; ++e) {
      to[static_cast<std::ptrdiff_t>(e)] += from[static_cast<std::ptrdiff_t>(e)];
    }
  }
  if (divisor != T{1}) {
    for (T& value : result.values) value /= divisor;
  }
  return result;
}

}  // namespace

template <class T>
SparseRows<T> all_reduce_rows(Communicator& comm, const SparseRows<T>& own,
                              const SparseOptions& options) {
  const Caller caller{.rank = comm.rank(), .operation = "all_reduce_rows"};
  const bool is_mean = options.op == ReduceOp::mean;
  check(caller, is_mean || options.op == ReduceOp::sum, "the operation must be sum or mean");
  const bool fits = own.values.size() == own.rows.size() * options.row_elements;
  std::vector<std::size_t> counts = numbers_of_rows(
      caller, comm,
      {.rows = own.rows.size(), .row_elements = options.row_elements, .fits = fits ? 1u : 0u},
      options);
  SparseRows<T> all;
  all.rows.resize(execution::total(counts));
  all.values.resize(all.rows.size() * options.row_elements);
  Work rows = comm.all_gather(own.rows, all.rows, {.counts = counts, .timeout = options.timeout});
  for (std::size_t& count : counts) count *= options.row_elements;
  Work values =
      comm.all_gather(own.values, all.values, {.counts = counts, .timeout = options.timeout});
  rows.wait();
  values.wait();
  return add_up(all, options.row_elements, is_mean ? static_cast<T>(comm.size()) : T{1});
}

template SparseRows<float> all_reduce_rows(Communicator&, const SparseRows<float>&,
                                           const SparseOptions&);
template SparseRows<double> all_reduce_rows(Communicator&, const SparseRows<double>&,
                                            const SparseOptions&);
template SparseRows<std::int32_t> all_reduce_rows(Communicator&, const SparseRows<std::int32_t>&,
                                                  const SparseOptions&);
template SparseRows<std::int64_t> all_reduce_rows(Communicator&, const SparseRows<std::int64_t>&,
                                                  const SparseOptions&);

}  // namespace stretto
