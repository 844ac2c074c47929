// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>

#include "stretto/base/operation.h"
#include "stretto/base/view.h"
#include "stretto/execution/chunk_layout.h"
#include "stretto/schedule/algorithms.h"
#include "stretto/schedule/dependencies.h"

namespace stretto::execution {

// A schedule bound to a size and a type: which bytes each slot is, segment by segment. Built once
// per kind of operation and cached; it knows no addresses, so it serves every call of that kind.
// Immutable; any thread may read it.
class Plan {
 public:
  struct Options {
    OperationDescriptor operation;
    Shares shares = {};
    // Bytes of a chunk that travel or are staged at a time.
    std::size_t segment_bytes_max = 0;
    // How many segments may be under way at a time.
    std::size_t lanes = 1;
  };
  Plan(schedule::Schedule steps, const Options& options);

  const schedule::Schedule& schedule() const { return schedule_; }
  const schedule::Dependencies& dependencies() const { return dependencies_; }
  const OperationDescriptor& operation() const { return operation_; }
  std::uint32_t segment_count() const { return segment_count_; }
  std::size_t segment_bytes() const { return segment_elements_ * size_bytes(operation_.dtype); }
  std::size_t lanes() const { return lanes_; }
  // 1, or the number of ranks where the operation is a mean.
  int divisor() const { return divisor_; }

  // Where a place's bytes of one segment begin (in that rank's buffer; scratch: in the shared or
  // the private scratch of one lane) and how many elements of which type they are.
  struct Range {
    std::size_t offset_bytes = 0;
    std::size_t count = 0;
    DType dtype = DType::u8;

    std::size_t bytes() const { return count * size_bytes(dtype); }
  };
  Range range(const schedule::Place& place, std::uint32_t segment) const;

  // Bytes of scratch of one lane. Shared slots lie where the team reaches them; elsewhere lie the
  // other raw slots, then the partial slots. Slots begin at cache lines, unless all of them fit
  // into a post.
  std::size_t shared_bytes() const { return shared_bytes_; }
  std::size_t private_bytes() const { return private_bytes_; }
  bool is_shared(const schedule::Slot& slot) const {
    return slot.buffer == schedule::Buffer::raw && slot.index < schedule_.shared_slots;
  }
  // How many bytes the operation reads and writes in the buffers of a rank's caller (ChunkLayout).
  std::size_t input_bytes(Rank rank) const {
    return layout_.input_elements(rank) * size_bytes(operation_.dtype);
  }
  std::size_t output_bytes(Rank rank) const {
    return layout_.output_elements(rank) * size_bytes(operation_.dtype);
  }
  std::size_t chunk_elements(ChunkIndex chunk) const { return layout_.elements(chunk); }

 private:
  schedule::Schedule schedule_;
  schedule::Dependencies dependencies_;
  OperationDescriptor operation_;
  ChunkLayout layout_;
  int divisor_ = 1;
  std::size_t segment_elements_ = 1;
  std::uint32_t segment_count_ = 1;
  std::size_t lanes_;
  std::size_t scratch_alignment_bytes_ = 1;
  std::size_t partial_begin_bytes_ = 0;
  std::size_t shared_bytes_ = 0;
  std::size_t private_bytes_ = 0;
};

}  // namespace stretto::execution
