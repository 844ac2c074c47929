// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "stretto/codec/codec.h"
#include "stretto/communicator/communicator.h"

namespace stretto {

// Some rows of a matrix whose other rows are zero: the gradient of an embedding, say. What a sparse
// COO tensor with one sparse dimension holds.
template <class T>
struct SparseRows {
  std::vector<std::int64_t> rows;  // Which, below 2^32 - 1. In any order; what is said twice is
                                   // added up.
  std::vector<T> values;           // Row after row, each of the same number of elements.
};

struct SparseOptions {
  std::size_t row_elements = 1;
  // That the matrix has, at most 2^32 - 1, the same on all ranks: no rank can make another take
  // memory for more. 0: unknown; then the rows of all ranks together are not to take more than
  // max_bytes.
  std::size_t matrix_rows = 0;
  std::size_t max_bytes = std::size_t{1} << 30;
  ReduceOp op = ReduceOp::sum;  // Or mean: over all ranks, absent rows counting as zero.
  // How the values of a rank travel: bf16 halves them, of float only. Sums are of T.
  ValueFormat values = ValueFormat::f32;
  std::optional<Duration> timeout = std::nullopt;
};

// Everybody's rows, on their way to be added up. Move-only. What it has sent ends as a Work does.
template <class T>
class [[nodiscard]] SparseRowsWork {
 public:
  SparseRowsWork(SparseRowsWork&& other) noexcept = default;
  SparseRowsWork& operator=(SparseRowsWork&& other) noexcept = default;

  // See start_all_reduce_rows().
  static SparseRowsWork start(Communicator& comm, const SparseRows<T>& own,
                              const SparseOptions& options);
  // Lets the rows leave, once all ranks have said how many they have, for which it blocks. Called
  // for several before the first wait(), all of them are on their way together. What it has thrown,
  // it throws again.
  void send();
  // The sum; see all_reduce_rows(), which also says what this and send() throw. Blocks; calls
  // send() if nobody has. Once, unless that throws.
  SparseRows<T> wait();

 private:
  struct Call;
  explicit SparseRowsWork(std::shared_ptr<Call> call) : call_(std::move(call)) {}

  std::shared_ptr<Call> call_;  // Not shared: a unique_ptr could not end where Call is incomplete.
};

// Everybody's rows, added up: collective. The result has each row once, in ascending order, and the
// same bits on all ranks: a row is the sum of what ranks 0, 1, 2, ... have of it, in that order,
// and what a rank says twice is added up first. Instantiated for float, double, std::int32_t and
// std::int64_t.
//
// Moves what all ranks have to all of them, as messages of docs/internals/wire_format.md, which say
// a row in 1 to 2 bytes; so it pays while all together have fewer rows than the matrix; else make
// it dense and use all_reduce. Two operations, of which the first tells the numbers of rows. Throws
// InvalidArgument on all ranks, before anything else has moved, if some rank's values do not fit
// its rows, if a row is negative or too great, if there are too many, or if ranks have rows of
// other lengths, types, formats, matrices or limits, naming both; on this rank if the operation is
// neither sum nor mean; else what the operations throw. Mismatch or ProtocolError if what comes is
// no such message.
//
// This one does not wait for other ranks; all_reduce_rows() does. `own` is copied. Ranks call
// start_..., send() and wait() of several in the same order.
template <class T>
SparseRowsWork<T> start_all_reduce_rows(Communicator& comm, const SparseRows<T>& own,
                                        const SparseOptions& options = {}) {
  return SparseRowsWork<T>::start(comm, own, options);
}
template <class T>
SparseRows<T> all_reduce_rows(Communicator& comm, const SparseRows<T>& own,
                              const SparseOptions& options = {}) {
  return start_all_reduce_rows(comm, own, options).wait();
}

}  // namespace stretto
