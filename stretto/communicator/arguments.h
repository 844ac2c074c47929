// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "stretto/base/id.h"
#include "stretto/base/reduce_op.h"
#include "stretto/base/view.h"
#include "stretto/execution/shares.h"

namespace stretto::communicator {

// Checks of a caller's arguments before anything is sent. All of them throw InvalidArgument, with a
// text that begins with the caller.

// The rank and operation whose arguments are checked: "rank 2: all_reduce, entry 3".
struct Caller {
  Rank rank = 0;  // In the group of the operation.
  std::string_view operation;
  std::optional<std::size_t> entry = std::nullopt;  // Of a list.
};

[[noreturn]] void refuse(const Caller& caller, std::string_view what);
[[noreturn]] void refuse_rank(const Caller& caller, std::string_view what, Rank rank, int size);
[[noreturn]] void refuse_null(const Caller& caller);
[[noreturn]] void refuse_count(const Caller& caller, std::string_view buffer, std::size_t count,
                               std::size_t expected);
[[noreturn]] void refuse_reduction(const Caller& caller, ReduceOp op, DType dtype);
[[noreturn]] void refuse_dtypes(const Caller& caller, const ConstView& input, const View& output);
// Checks that input and output do not overlap.
void check_apart(const Caller& caller, const ConstView& input, const View& output);

// Refuses the call with the text `otherwise` unless `holds`. `otherwise` is a view so that a good
// call builds no text; the refuse_ functions build texts with values.
void check(const Caller& caller, bool holds, std::string_view otherwise);
// Checks that `dtype` supports `op` and, if `factor` is not 1, a factor.
inline void check_reduction(const Caller& caller, ReduceOp op, DType dtype, double factor) {
  const bool fits = factor == 1 || is_floating_point(dtype);
  if (!fits || !supports(op, dtype)) refuse_reduction(caller, op, dtype);
}
// Whether a buffer has elements but no memory; an operation on it would end the process.
inline bool lacks_memory(ConstByteSpan buffer) {
  return buffer.data() == nullptr && !buffer.empty();
}
inline void check_rank(const Caller& caller, Rank rank, int size, std::string_view what = "rank") {
  if (rank < 0 || rank >= size) refuse_rank(caller, what, rank, size);
}
inline void check_root(const Caller& caller, Rank root, int size) {
  check_rank(caller, root, size, "root");
}
// Checks that a buffer has the expected number of elements.
inline void check_count(const Caller& caller, std::string_view buffer, std::size_t count,
                        std::size_t expected) {
  if (count != expected) refuse_count(caller, buffer, count, expected);
}
inline void check_dtypes(const Caller& caller, const ConstView& input, const View& output) {
  if (input.dtype != output.dtype) refuse_dtypes(caller, input, output);
}
// Checks that input and output do not overlap, unless the input begins exactly `in_place_elements`
// after the output (before it if negative).
inline void check_overlap(const Caller& caller, const ConstView& input, const View& output,
                          std::ptrdiff_t in_place_elements) {
  const auto in_place_bytes =
      in_place_elements * static_cast<std::ptrdiff_t>(size_bytes(output.dtype));
  if (input.data - output.data != in_place_bytes) check_apart(caller, input, output);
}
// All these checks of buffers, for a rank that has an input and an output.
inline void check_buffers(const Caller& caller, const ConstView& input, std::size_t input_count,
                          const View& output, std::size_t output_count,
                          std::ptrdiff_t in_place_elements) {
  check_dtypes(caller, input, output);
  check_count(caller, "output", output.count, output_count);
  check_count(caller, "input", input.count, input_count);
  check_overlap(caller, input, output, in_place_elements);
}

// A caller's list of counts, in a form that is the same for equivalent lists. Nothing: all shares
// are equal. The result refers to `counts`.
std::optional<execution::SharesView> shares_of(const Caller& caller,
                                               std::span<const std::size_t> counts, int size);
// The element at which a rank's share begins.
std::size_t share_begin(const execution::SharesView& shares, Rank rank);

// The number of a new group: a hash of the parent's number, of how many groups were made of the
// parent, and of the members. So all ranks get the same number without communication.
std::uint64_t group_number(std::uint64_t parent, std::uint64_t made,
                           const std::vector<Rank>& ranks);
// A different number at each call in this process.
std::uint64_t next_serial();

}  // namespace stretto::communicator
