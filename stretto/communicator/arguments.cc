// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/arguments.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include "stretto/base/random.h"
#include "stretto/base/refuse.h"

namespace stretto::communicator {
namespace {

bool overlap(const ConstView& a, const View& b) {
  const std::less<const std::byte*> before;
  return a.bytes() > 0 && b.bytes() > 0 && before(a.data, b.data + b.bytes()) &&
         before(b.data, a.data + a.bytes());
}

}  // namespace

void refuse(const Caller& caller, std::string_view what) {
  const std::string entry = caller.entry ? fmt::format(", entry {}", *caller.entry) : "";
  stretto::refuse("rank {}: {}{}: {}", caller.rank.value(), caller.operation, entry, what);
}

void check(const Caller& caller, bool holds, std::string_view otherwise) {
  if (!holds) refuse(caller, otherwise);
}

void refuse_rank(const Caller& caller, std::string_view what, Rank rank, int size) {
  refuse(caller, fmt::format("{} {} is not one of {} ranks", what, rank.value(), size));
}

void refuse_null(const Caller& caller) {
  refuse(caller, "a buffer has elements, but its address is null");
}

void refuse_count(const Caller& caller, std::string_view buffer, std::size_t count,
                  std::size_t expected) {
  refuse(caller, fmt::format("the {} has {} elements; it must have {}", buffer, count, expected));
}

void refuse_reduction(const Caller& caller, ReduceOp op, DType dtype) {
  if (!supports(op, dtype)) {
    refuse(caller, fmt::format("{} has no meaning for {}; possible are: {}", name(op), name(dtype),
                               supported_ops(dtype)));
  }
  refuse(caller, fmt::format("a factor needs a floating point dtype, not {}; possible are: f16, "
                             "bf16, f32, f64",
                             name(dtype)));
}

void refuse_dtypes(const Caller& caller, const ConstView& input, const View& output) {
  refuse(caller,
         fmt::format("the input is {}, the output {}", name(input.dtype), name(output.dtype)));
}

void check_apart(const Caller& caller, const ConstView& input, const View& output) {
  check(caller, !overlap(input, output), "input and output overlap without being in place");
}

std::optional<execution::SharesView> shares_of(const Caller& caller,
                                               std::span<const std::size_t> counts, int size) {
  if (counts.empty()) return std::nullopt;
  if (std::cmp_not_equal(counts.size(), size)) {
    refuse(caller, fmt::format("there are {} counts for {} ranks", counts.size(), size));
  }
  // Bounds the bytes of any dtype.
  std::size_t left = std::numeric_limits<std::size_t>::max() / 16;
  for (const std::size_t count : counts) {
    check(caller, count <= left, "the counts are too large to be true");
    left -= count;
  }
  if (std::ranges::all_of(counts, [&](std::size_t count) { return count == counts.front(); })) {
    return std::nullopt;
  }
  return execution::SharesView{.counts = counts, .received = {}};
}

std::size_t share_begin(const execution::SharesView& shares, Rank rank) {
  return execution::total(shares.counts.first(static_cast<std::size_t>(rank)));
}

std::uint64_t group_number(std::uint64_t parent, std::uint64_t made,
                           const std::vector<Rank>& ranks) {
  std::uint64_t number = Random(parent).next() ^ Random(made).next();
  for (const Rank rank : ranks) {
    number = Random(number ^ static_cast<std::uint64_t>(rank.value())).next();
  }
  return number;
}

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};  // Relaxed: it orders no other data.
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace stretto::communicator
