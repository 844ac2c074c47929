// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/plan.h"

#include <algorithm>

namespace stretto::communicator {
namespace {

// Chunks of an all-reduce begin on lines of this size: two ranks never write to one line, and the
// adjacent-line prefetcher does not make them.
constexpr std::size_t kChunkAlignmentBytes = 128;
constexpr std::size_t kScratchAlignmentBytes = 64;

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// One chunk per rank whose sizes the caller has fixed: equal shards of `count` elements in all.
bool has_shards(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::all_gather;
}

}  // namespace

Plan::Plan(schedule::Schedule steps, const Options& options)
    : schedule_(std::move(steps)),
      dependencies_(schedule::dependencies(schedule_)),
      operation_(options.operation) {
  if (operation_.op == ReduceOp::mean) divisor_ = schedule_.rank_count;
  lay_out_chunks();
  const std::size_t element_bytes = size_bytes(operation_.dtype);
  const std::size_t partial_bytes = size_bytes(accumulation_dtype(operation_.dtype));
  segment_elements_ = std::max<std::size_t>(1, options.segment_bytes_max / element_bytes);
  std::size_t longest = 0;
  for (std::size_t c = 0; c + 1 < chunk_begin_.size(); ++c) {
    longest = std::max(longest, chunk_begin_[c + 1] - chunk_begin_[c]);
  }
  // One segment even where there is nothing to move: its empty messages find out ranks that
  // disagree.
  segment_count_ = static_cast<std::uint32_t>(
      std::max<std::size_t>(1, (longest + segment_elements_ - 1) / segment_elements_));
  segment_elements_ = std::min(segment_elements_, std::max<std::size_t>(1, longest));
  const std::size_t raw_bytes = round_up(segment_elements_ * element_bytes, kScratchAlignmentBytes);
  const std::size_t sum_bytes = round_up(segment_elements_ * partial_bytes, kScratchAlignmentBytes);
  partial_begin_bytes_ = static_cast<std::size_t>(schedule_.raw_slots) * raw_bytes;
  scratch_bytes_ =
      partial_begin_bytes_ + static_cast<std::size_t>(schedule_.partial_slots) * sum_bytes;
}

void Plan::lay_out_chunks() {
  // A barrier has no chunk; one that is empty spares everybody else the question.
  const auto chunks = static_cast<std::size_t>(std::max(1, schedule_.chunk_count));
  const std::size_t count = operation_.count;
  const std::size_t aligned = kChunkAlignmentBytes / size_bytes(operation_.dtype);
  const bool shards = has_shards(operation_.collective);
  const std::size_t share = (count + chunks - 1) / chunks;
  const std::size_t step = shards || chunks == 1 ? share : round_up(share, aligned);
  for (std::size_t c = 0; c <= chunks; ++c) chunk_begin_.push_back(std::min(count, c * step));
  input_count_ = output_count_ = count;
  const auto rank = static_cast<std::size_t>(schedule_.rank);
  if (operation_.collective == Collective::reduce_scatter) {
    output_count_ = chunk_begin_[rank + 1] - chunk_begin_[rank];
  }
  if (operation_.collective == Collective::all_gather) {
    input_count_ = chunk_begin_[rank + 1] - chunk_begin_[rank];
  }
}

// The first element of the whole buffer that the rank's input or output holds: not 0 where it is
// one shard.
std::size_t Plan::first_element(const schedule::Place& place) const {
  const bool shard = place.slot.buffer == schedule::Buffer::input
                         ? operation_.collective == Collective::all_gather
                         : operation_.collective == Collective::reduce_scatter;
  return shard ? chunk_begin_[static_cast<std::size_t>(place.rank)] : 0;
}

Plan::Range Plan::range(const schedule::Place& place, std::uint32_t segment) const {
  const schedule::Slot& slot = place.slot;
  const auto chunk = static_cast<std::size_t>(slot.chunk);
  const std::size_t begin =
      std::min(chunk_begin_[chunk] + segment * segment_elements_, chunk_begin_[chunk + 1]);
  const std::size_t count = std::min(segment_elements_, chunk_begin_[chunk + 1] - begin);
  const DType dtype = slot.buffer == schedule::Buffer::partial
                          ? accumulation_dtype(operation_.dtype)
                          : operation_.dtype;
  const std::size_t element_bytes = size_bytes(dtype);
  const std::size_t slot_bytes =
      round_up(segment_elements_ * element_bytes, kScratchAlignmentBytes);
  const auto index = static_cast<std::size_t>(slot.index);
  switch (slot.buffer) {
    case schedule::Buffer::input:
    case schedule::Buffer::output:
      return {(begin - first_element(place)) * element_bytes, count, dtype};
    case schedule::Buffer::raw:
      return {index * slot_bytes, count, dtype};
    case schedule::Buffer::partial:
      return {partial_begin_bytes_ + index * slot_bytes, count, dtype};
  }
  return {};
}

}  // namespace stretto::communicator
