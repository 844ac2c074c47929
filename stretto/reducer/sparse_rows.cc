// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/sparse_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/dtype.h"
#include "stretto/base/rank_vector.h"
#include "stretto/base/refuse.h"
#include "stretto/codec/rows.h"
#include "stretto/communicator/arguments.h"
#include "stretto/reducer/agreement.h"

namespace stretto {
namespace {

using communicator::Caller;
using Rows = std::vector<std::uint32_t>;

// What a rank announces before it sends its rows.
struct Announcement {
  std::uint64_t rows = 0;  // Different ones.
  std::uint64_t end = 0;   // The greatest row + 1.
  std::uint64_t row_elements = 0;
  std::uint64_t matrix_rows = 0;
  std::uint64_t max_bytes = 0;
  std::uint8_t fits = 0;  // Whether there are row_elements values for each row.
  std::uint8_t is_in_range = 0;
  std::uint8_t dtype = 0;
  std::uint8_t values = 0;
  std::uint32_t zero = 0;

  std::string describe() const {
    return fmt::format("of {} elements of {}{}{}", row_elements, name(static_cast<DType>(dtype)),
                       values == static_cast<std::uint8_t>(ValueFormat::bf16) ? " as bf16" : "",
                       matrix_rows > 0 ? fmt::format(" in a matrix of {}", matrix_rows)
                       : max_bytes == SparseOptions().max_bytes
                           ? ""
                           : fmt::format(" in {} bytes at most", max_bytes));
  }
  std::uint64_t limit() const {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
    return matrix_rows > 0 ? std::min(matrix_rows, kMost) : kMost;
  }
};

// All ranks come to the same conclusion, from the same announcements. `number_bytes`: of a value.
void check_announcements(const Caller& caller, const std::vector<Announcement>& all,
                         std::size_t number_bytes) {
  std::uint64_t rows = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].fits == 0) {
      refuse(caller, fmt::format("rank {} has values that are not row_elements for each of its "
                                 "rows",
                                 rank));
    }
    if (all[rank].is_in_range == 0 || all[rank].rows > all[rank].end ||
        all[rank].end > all[rank].limit()) {
      refuse(caller, fmt::format("rank {} has a row that is negative or not below {}", rank,
                                 all[rank].limit()));
    }
    if (all[rank].describe() != all.front().describe()) {
      refuse(caller, fmt::format("rows are {} on rank 0 and {} on rank {}", all.front().describe(),
                                 all[rank].describe(), rank));
    }
    rows += all[rank].rows;
  }
  const Announcement& said = all.front();
  const std::uint64_t most =
      said.max_bytes / number_bytes / std::max<std::uint64_t>(1, said.row_elements);
  if (said.matrix_rows == 0 && rows > most) {
    refuse(caller, fmt::format("ranks have {} rows together, which is more than SparseOptions::"
                               "max_bytes, {}, holds; say how many the matrix has",
                               rows, said.max_bytes));
  }
}

// The sum of rows and values of several sources: each row once, in ascending order.
template <class T>
class Sum {
 public:
  Sum(Rows all, std::size_t row_elements) : rows_(std::move(all)), row_elements_(row_elements) {
    if (!std::ranges::is_sorted(rows_)) std::ranges::sort(rows_);
    rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
    // Any number added to -0.0 is that number, bit for bit.
    values_.assign(rows_.size() * row_elements, static_cast<T>(-0.0));
  }

  // Adds the values of `rows`, which must be among the rows of the sum.
  void add(std::span<const std::uint32_t> rows, const T* values) {
    auto place = rows_.begin();
    for (const std::uint32_t row : rows) {
      if (place == rows_.end() || row < *place) place = rows_.begin();
      if (*place != row) place = std::lower_bound(place, rows_.end(), row);
      T* const to =
          values_.data() + (place - rows_.begin()) * static_cast<std::ptrdiff_t>(row_elements_);
      for (std::size_t e = 0; e < row_elements_; ++e) to[e] = sum(to[e], values[e]);
      values += row_elements_;
      ++place;
    }
  }
  const Rows& rows() const { return rows_; }
  std::vector<T>& values() { return values_; }

 private:
  // Sums of integers wrap (base/reduce_op.h).
  static T sum(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Bits = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Bits>(a) + static_cast<Bits>(b));
    } else {
      return a + b;
    }
  }

  Rows rows_;
  const std::size_t row_elements_;
  std::vector<T> values_;
};

// The rows of this rank, each once.
template <class T>
Sum<T> own_sum(const SparseRows<T>& own, std::size_t row_elements, bool is_usable) {
  Rows rows;
  if (is_usable) rows.assign(own.rows.begin(), own.rows.end());
  Sum<T> sum(rows, row_elements);
  sum.add(rows, own.values.data());
  return sum;
}

template <class T>
SparseRows<T> sum_of(Communicator& comm, const std::vector<Announcement>& announced,
                     std::span<const std::byte> messages, const codec::RowsFormat& format) {
  std::vector<Rows> rows;
  std::vector<std::vector<T>> values;
  Rows all;
  for (std::size_t rank = 0; rank < announced.size(); ++rank) {
    rows.emplace_back(announced[rank].rows);
    values.emplace_back(announced[rank].rows * format.row_elements);
    const auto length = codec::read_rows(messages, format, rows.back(), values.back().data());
    if (!length.ok()) {
      const std::size_t named = reducer::job_rank(comm, rank);
      reducer::abort_and_throw(comm, length.status().code(), named,
                               "all_reduce_rows: rows of rank {}: {}", named,
                               length.status().message());
    }
    messages = messages.subspan(length.value());
    all.insert(all.end(), rows.back().begin(), rows.back().end());
  }
  Sum<T> sum(std::move(all), format.row_elements);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) sum.add(rows[rank], values[rank].data());
  return {{sum.rows().begin(), sum.rows().end()}, std::move(sum.values())};
}

}  // namespace

template <class T>
struct SparseRowsWork<T>::Call {
  Call(Communicator& communicator, const SparseOptions& wanted)
      : comm(communicator),
        options(wanted),
        caller{.rank = comm.rank(), .operation = "all_reduce_rows"},
        format{.row_elements = wanted.row_elements, .dtype = dtype_of<T>, .values = wanted.values},
        announced(comm.size()) {}

  Communicator& comm;
  const SparseOptions options;
  const Caller caller;
  codec::RowsFormat format;
  std::optional<Sum<T>> mine = std::nullopt;
  RankVector<Announcement> announced;
  std::vector<std::byte> message = {};
  std::vector<std::byte> messages = {};
  bool is_sent = false;
  Work work = {};  // Of the announcements, then of the messages.
};

template <class T>
SparseRowsWork<T> SparseRowsWork<T>::start(Communicator& comm, const SparseRows<T>& own,
                                           const SparseOptions& options) {
  auto call = std::make_shared<Call>(comm, options);
  check(call->caller, options.op == ReduceOp::mean || options.op == ReduceOp::sum,
        "the operation must be sum or mean");
  check(call->caller,
        options.values == ValueFormat::f32 ||
            (options.values == ValueFormat::bf16 && dtype_of<T> == DType::f32),
        "values travel as they are, or those of float as bf16");
  const bool fits = own.values.size() == own.rows.size() * options.row_elements;
  Announcement announcement{.row_elements = options.row_elements,
                            .matrix_rows = options.matrix_rows,
                            .max_bytes = options.max_bytes,
                            .fits = fits,
                            .dtype = static_cast<std::uint8_t>(dtype_of<T>),
                            .values = static_cast<std::uint8_t>(options.values)};
  const bool is_in_range = std::ranges::all_of(own.rows, [&](std::int64_t row) {
    return row >= 0 && static_cast<std::uint64_t>(row) < announcement.limit();
  });
  call->mine.emplace(own_sum(own, options.row_elements, fits && is_in_range));
  const Rows& rows = call->mine->rows();
  announcement.is_in_range = is_in_range ? 1 : 0;
  announcement.rows = rows.size();
  announcement.end = rows.empty() ? 0 : std::uint64_t{rows.back()} + 1;
  Announcement& place = call->announced[comm.rank()];
  place = announcement;
  call->work = comm.all_gather(std::as_bytes(std::span(&place, 1)),
                               std::as_writable_bytes(std::span(call->announced)),
                               {.timeout = options.timeout});
  return SparseRowsWork(std::move(call));
}

template <class T>
void SparseRowsWork<T>::send() {
  if (call_ == nullptr) refuse("rows have been waited for already");
  Call& call = *call_;
  if (call.is_sent) return;
  call.work.wait();
  check_announcements(call.caller, call.announced, sizeof(T));
  for (const Announcement& other : call.announced) {
    call.format.universe = std::max<std::size_t>(call.format.universe, other.end);
  }
  std::vector<std::size_t> lengths;
  for (const Announcement& other : call.announced) {
    lengths.push_back(codec::rows_message_bytes(call.format, other.rows));
  }
  call.messages.resize(std::reduce(lengths.begin(), lengths.end()));
  call.message.clear();
  codec::write_rows(call.format, call.mine->rows(), call.mine->values().data(), call.message);
  call.work = call.comm.all_gather(call.message, call.messages,
                                   {.counts = lengths, .timeout = call.options.timeout});
  call.is_sent = true;
}

template <class T>
SparseRows<T> SparseRowsWork<T>::wait() {
  send();
  const std::shared_ptr<Call> call = std::move(call_);
  call->work.wait();
  SparseRows<T> result = sum_of<T>(call->comm, call->announced, call->messages, call->format);
  const int ranks = call->comm.size();
  if (call->options.op == ReduceOp::mean && ranks > 1) {
    for (T& value : result.values) value /= static_cast<T>(ranks);
  }
  return result;
}

template class SparseRowsWork<float>;
template class SparseRowsWork<double>;
template class SparseRowsWork<std::int32_t>;
template class SparseRowsWork<std::int64_t>;

}  // namespace stretto
