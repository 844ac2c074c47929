// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <vector>

#include "stretto/base/operation.h"
#include "stretto/execution/shares.h"
#include "stretto/schedule/schedule.h"

namespace stretto::execution {

// How long the chunks of a schedule are for one operation, and where they lie in the callers'
// buffers. All in elements. Immutable.
class ChunkLayout {
 public:
  ChunkLayout(const schedule::Schedule& steps, const OperationDescriptor& operation,
              const Shares& shares);

  std::size_t elements(ChunkIndex chunk) const;
  // Where a chunk of input or output begins in the buffer of `place.rank`. In an all_to_all with
  // unequal shares, only chunks of this rank are known, unless the shares are those of all ranks.
  std::size_t offset(const schedule::Place& place) const;
  // The longest chunk of those that this rank knows.
  std::size_t longest() const;
  // The lengths of the input and output of a rank's caller; 0 if the collective does not use that
  // buffer. The same restriction holds.
  std::size_t input_elements(Rank rank) const;
  std::size_t output_elements(Rank rank) const;

 private:
  bool exchanges() const { return collective_ == Collective::all_to_all; }
  std::size_t sent_before(Rank from, std::size_t to) const;
  std::size_t received_before(std::size_t from, Rank by) const;

  Collective collective_;
  Rank rank_;
  Rank root_;
  std::size_t rank_count_;
  // Where chunks begin, and the end of the last: in the whole buffer or, in an all_to_all, in what
  // this rank sends.
  std::vector<std::size_t> begin_;
  std::vector<std::size_t> received_begin_;  // Of an all_to_all with unequal shares.
  std::vector<std::size_t> parcels_;         // Instead of both: what each rank sends to each.
};

}  // namespace stretto::execution
