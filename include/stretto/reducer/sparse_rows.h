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

// Some rows of a matrix whose other rows are zero, such as the gradient of an embedding: the
// contents of a sparse COO tensor with one sparse dimension.
template <class T>
struct SparseRows {
  std::vector<std::int64_t> rows;  // Indices below 2^32 - 1, in any order. Rows with the same index
                                   // are added up.
  std::vector<T> values;           // Row after row, all of the same length.
};

struct SparseOptions {
  std::size_t row_elements = 1;
  // Rows of the matrix, at most 2^32 - 1, equal on all ranks: no rank can make another one allocate
  // memory for more rows. 0: unknown; then the rows of all ranks together may take max_bytes at
  // most.
  std::size_t matrix_rows = 0;
  std::size_t max_bytes = std::size_t{1} << 30;
  ReduceOp op = ReduceOp::sum;  // Or mean: over all ranks; a rank without a row counts as zero.
  // Format in which values are sent. bf16 halves the bytes, for float only. Sums are of T.
  ValueFormat values = ValueFormat::f32;
  std::optional<Duration> timeout = std::nullopt;
};

// The rows of all ranks on their way to be added up. Move-only. Operations in flight end like a
// Work.
template <class T>
class [[nodiscard]] SparseRowsWork {
 public:
  SparseRowsWork(SparseRowsWork&& other) noexcept = default;
  SparseRowsWork& operator=(SparseRowsWork&& other) noexcept = default;

  // See start_all_reduce_rows().
  static SparseRowsWork start(Communicator& comm, const SparseRows<T>& own,
                              const SparseOptions& options);
  // Blocks until all ranks have said how many rows they have, then sends the rows. If it is called
  // for several objects before the first wait(), the rows of all are in flight together. If it has
  // thrown, it throws the same again.
  void send();
  // Blocks, and returns the sum. Calls send() if that was not called; all_reduce_rows() says what
  // both throw. Call it once, or again if send() has thrown.
  SparseRows<T> wait();

 private:
  struct Call;
  explicit SparseRowsWork(std::shared_ptr<Call> call) : call_(std::move(call)) {}

  std::shared_ptr<Call> call_;  // unique_ptr would need the complete type.
};

// Adds up the rows of all ranks: collective. The result has each row once, in ascending order, and
// the same bits on all ranks: a row is the sum of the rows of ranks 0, 1, 2, ..., in that order,
// after a rank's rows with the same index are added up. Instantiated for float, double,
// std::int32_t and std::int64_t.
//
// Sends the rows of each rank to all ranks, in messages of docs/internals/wire_format.md, which
// take 1 to 2 bytes for an index. It pays while all ranks together have fewer rows than the matrix;
// otherwise make the matrix dense and use all_reduce. Two operations; the first one sends the
// numbers of rows.
// Throws InvalidArgument on all ranks, before any row is sent, if a rank's values do not fit its
// rows, if a row index is negative or too great, if there are too many rows, or if ranks differ in
// row lengths, types, formats, matrices or limits, naming both. Throws InvalidArgument on this rank
// if the operation is neither sum nor mean, or if `values` is not for T. Throws what operations
// throw, and Mismatch or ProtocolError for a received message that is damaged or of another kind.
//
// start_all_reduce_rows() does not wait for other ranks; all_reduce_rows() does. `own` is copied.
// Ranks call start_all_reduce_rows(), send() and wait() of several objects in the same order.
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
