// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/plan.h"

#include <algorithm>
#include <utility>

#include "stretto/base/round_up.h"
#include "stretto/execution/window.h"

namespace stretto::execution {

Plan::Plan(schedule::Schedule steps, const Options& options)
    : schedule_(std::move(steps)),
      dependencies_(schedule::dependencies(schedule_)),
      operation_(options.operation),
      layout_(schedule_, operation_, options.shares),
      lanes_(options.lanes) {
  if (operation_.op == ReduceOp::mean) divisor_ = schedule_.rank_count;
  const std::size_t element_bytes = size_bytes(operation_.dtype);
  const std::size_t partial_bytes = size_bytes(accumulation_dtype(operation_.dtype));
  segment_elements_ = std::max<std::size_t>(1, options.segment_bytes_max / element_bytes);
  const std::size_t longest = layout_.longest();
  // One segment even where there is nothing to move: its empty messages find out ranks that
  // disagree.
  segment_count_ = static_cast<std::uint32_t>(
      std::max<std::size_t>(1, (longest + segment_elements_ - 1) / segment_elements_));
  // Both sides of a message must cut alike, and of some operations no rank knows the longest chunk.
  if (!counts_by_message(operation_)) {
    segment_elements_ = std::min(segment_elements_, std::max<std::size_t>(1, longest));
  }
  const auto slots = static_cast<std::size_t>(schedule_.raw_slots);
  const auto shared_slots = static_cast<std::size_t>(schedule_.shared_slots);
  // The ranks of a team must lay out shared slots alike, whatever else each does: where the team is
  // not everybody, some may send messages and others not.
  const bool is_small = std::cmp_equal(schedule_.team.size(), schedule_.rank_count) &&
                        schedule_.partial_slots == 0 &&
                        slots * segment_elements_ * element_bytes <= Post::kInlineBytes;
  scratch_alignment_bytes_ = is_small ? element_bytes : kCacheLineBytes;
  const std::size_t raw_bytes =
      round_up(segment_elements_ * element_bytes, scratch_alignment_bytes_);
  const std::size_t sum_bytes =
      round_up(segment_elements_ * partial_bytes, scratch_alignment_bytes_);
  shared_bytes_ = shared_slots * raw_bytes;
  partial_begin_bytes_ = (slots - shared_slots) * raw_bytes;
  private_bytes_ =
      partial_begin_bytes_ + static_cast<std::size_t>(schedule_.partial_slots) * sum_bytes;
}

Plan::Range Plan::range(const schedule::Place& place, std::uint32_t segment) const {
  const schedule::Slot& slot = place.slot;
  const std::size_t whole = layout_.elements(slot.chunk);
  const std::size_t begin = std::min(segment * segment_elements_, whole);
  const std::size_t count = std::min(segment_elements_, whole - begin);
  const DType dtype = slot.buffer == schedule::Buffer::partial
                          ? accumulation_dtype(operation_.dtype)
                          : operation_.dtype;
  const std::size_t element_bytes = size_bytes(dtype);
  const std::size_t slot_bytes =
      round_up(segment_elements_ * element_bytes, scratch_alignment_bytes_);
  const auto index = static_cast<std::size_t>(slot.index);
  switch (slot.buffer) {
    case schedule::Buffer::input:
    case schedule::Buffer::output:
      return {(layout_.offset(place) + begin) * element_bytes, count, dtype};
    case schedule::Buffer::raw: {
      const auto shared = static_cast<std::size_t>(schedule_.shared_slots);
      return {(index < shared ? index : index - shared) * slot_bytes, count, dtype};
    }
    case schedule::Buffer::partial:
      return {partial_begin_bytes_ + index * slot_bytes, count, dtype};
  }
  return {};
}

}  // namespace stretto::execution
