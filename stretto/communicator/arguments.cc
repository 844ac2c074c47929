// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/arguments.h"

#include <algorithm>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include "stretto/base/error.h"

namespace stretto::communicator {
namespace {

bool overlap(ConstView a, View b) {
  const std::less<const std::byte*> before;
  return a.bytes() > 0 && b.bytes() > 0 && before(a.data, b.data + b.bytes()) &&
         before(b.data, a.data + a.bytes());
}

}  // namespace

void check(bool holds, std::string_view otherwise) {
  if (!holds) throw InvalidArgument(Status(StatusCode::invalid_argument, std::string(otherwise)));
}

void check_reduction(ReduceOp op, DType dtype, double factor) {
  if (!supports(op, dtype)) {
    check(false, fmt::format("{} has no meaning for {}; possible are: {}", name(op), name(dtype),
                             supported_ops(dtype)));
  }
  if (factor != 1 && !is_floating_point(dtype)) {
    check(false, fmt::format("a factor needs a floating point dtype, not {}; possible are: f16, "
                             "bf16, f32, f64",
                             name(dtype)));
  }
}

void check_root(std::string_view operation, Rank root, int size) {
  if (root >= 0 && root < size) return;
  check(false, fmt::format("{}: root {} is not one of {} ranks", operation, root.value(), size));
}

void check_count(std::string_view operation, std::string_view buffer, std::size_t count,
                 std::size_t expected) {
  if (count == expected) return;
  check(false, fmt::format("{}: the {} has {} elements; it must have {}", operation, buffer, count,
                           expected));
}

void check_dtypes(std::string_view operation, ConstView input, View output) {
  if (input.dtype == output.dtype) return;
  check(false, fmt::format("{}: the input is {}, the output {}", operation, name(input.dtype),
                           name(output.dtype)));
}

void check_overlap(ConstView input, View output, std::ptrdiff_t in_place_elements) {
  if (!overlap(input, output)) return;
  const auto element_bytes = static_cast<std::ptrdiff_t>(size_bytes(output.dtype));
  check(input.data - output.data == in_place_elements * element_bytes,
        "input and output overlap without being in place");
}

std::optional<SharesView> shares_of(std::string_view operation, std::span<const std::size_t> counts,
                                    int size) {
  if (counts.empty()) return std::nullopt;
  if (std::cmp_not_equal(counts.size(), size)) {
    check(false,
          fmt::format("{}: there are {} counts for {} ranks", operation, counts.size(), size));
  }
  std::size_t left = std::numeric_limits<std::size_t>::max() / 16;  // Of bytes, of any dtype.
  for (const std::size_t count : counts) {
    check(count <= left, "the counts are too large to be true");
    left -= count;
  }
  if (std::ranges::all_of(counts, [&](std::size_t count) { return count == counts.front(); })) {
    return std::nullopt;
  }
  return SharesView{.counts = counts, .received = {}};
}

std::size_t share_begin(const SharesView& shares, Rank rank) {
  return total(shares.counts.first(static_cast<std::size_t>(rank)));
}

}  // namespace stretto::communicator
