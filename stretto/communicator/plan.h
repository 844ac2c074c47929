// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stretto/base/operation.h"
#include "stretto/base/view.h"
#include "stretto/schedule/algorithms.h"
#include "stretto/schedule/dependencies.h"

namespace stretto::communicator {

// A schedule bound to a size and a type: which bytes each slot is, segment by segment. Built once
// per kind of operation and cached; it knows no addresses, so it serves every call of that kind.
// Immutable; any thread may read it.
class Plan {
 public:
  struct Options {
    OperationDescriptor operation;
    // Bytes of a chunk that travel or are staged at a time.
    std::size_t segment_bytes_max = 0;
  };
  Plan(schedule::Schedule steps, const Options& options);

  const schedule::Schedule& schedule() const { return schedule_; }
  const schedule::Dependencies& dependencies() const { return dependencies_; }
  const OperationDescriptor& operation() const { return operation_; }
  std::uint32_t segment_count() const { return segment_count_; }
  // 1, or the number of ranks where the operation is a mean.
  int divisor() const { return divisor_; }

  // Where a place's bytes of one segment begin (in that rank's buffer; scratch: in the scratch
  // memory of one lane) and how many elements of which type they are.
  struct Range {
    std::size_t offset_bytes = 0;
    std::size_t count = 0;
    DType dtype = DType::u8;

    std::size_t bytes() const { return count * size_bytes(dtype); }
  };
  Range range(const schedule::Place& place, std::uint32_t segment) const;

  // Scratch of one lane: raw slots, then partial slots.
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  // How many bytes of the caller's the operation reads and writes on this rank.
  std::size_t input_bytes() const { return input_count_ * size_bytes(operation_.dtype); }
  std::size_t output_bytes() const { return output_count_ * size_bytes(operation_.dtype); }

 private:
  void lay_out_chunks();
  std::size_t first_element(const schedule::Place& place) const;

  schedule::Schedule schedule_;
  schedule::Dependencies dependencies_;
  OperationDescriptor operation_;
  int divisor_ = 1;
  std::vector<std::size_t> chunk_begin_;  // In elements; one more than there are chunks.
  std::size_t input_count_ = 0;
  std::size_t output_count_ = 0;
  std::size_t segment_elements_ = 1;
  std::uint32_t segment_count_ = 1;
  std::size_t partial_begin_bytes_ = 0;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace stretto::communicator
