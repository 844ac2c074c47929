// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/execution/chunk_layout.h"

#include <algorithm>

#include "stretto/base/round_up.h"

namespace stretto::execution {
namespace {

// Chunks that no rank owns begin on lines of this size: two ranks never write to one line, and the
// adjacent-line prefetcher makes none shared.
constexpr std::size_t kChunkAlignmentBytes = 128;

std::vector<std::size_t> prefix_sums(const std::vector<std::size_t>& counts) {
  std::vector<std::size_t> begin = {0};
  for (const std::size_t count : counts) begin.push_back(begin.back() + count);
  return begin;
}

std::vector<std::size_t> cut(std::size_t count, std::size_t chunks, std::size_t multiple) {
  const std::size_t step = round_up((count + chunks - 1) / chunks, multiple);
  std::vector<std::size_t> begin;
  for (std::size_t c = 0; c <= chunks; ++c) begin.push_back(std::min(count, c * step));
  return begin;
}

}  // namespace

ChunkLayout::ChunkLayout(const schedule::Schedule& steps, const OperationDescriptor& operation,
                         const Shares& shares)
    : collective_(operation.collective),
      rank_(steps.rank),
      root_(steps.root),
      rank_count_(static_cast<std::size_t>(steps.rank_count)) {
  if (shares.counts.size() > rank_count_) {
    parcels_ = shares.counts;
  } else if (!shares.equal()) {
    begin_ = prefix_sums(shares.counts);
    if (exchanges()) received_begin_ = prefix_sums(shares.received);
  } else if (has_shares(collective_)) {
    begin_ = cut(operation.count, rank_count_, 1);
  } else {
    // A barrier has no chunk; giving it an empty one spares other code a special case.
    const auto chunks = static_cast<std::size_t>(std::max(1, steps.chunk_count));
    const std::size_t aligned = kChunkAlignmentBytes / size_bytes(operation.dtype);
    begin_ = cut(operation.count, chunks, chunks == 1 ? 1 : aligned);
  }
}

std::size_t ChunkLayout::elements(ChunkIndex chunk) const {
  auto index = static_cast<std::size_t>(chunk);
  if (!parcels_.empty()) return parcels_[index];
  if (exchanges()) {
    const std::size_t from = index / rank_count_;
    index %= rank_count_;
    if (!received_begin_.empty() && from != static_cast<std::size_t>(rank_)) {
      return received_begin_[from + 1] - received_begin_[from];
    }
  }
  return begin_[index + 1] - begin_[index];
}

std::size_t ChunkLayout::offset(const schedule::Place& place) const {
  const auto index = static_cast<std::size_t>(place.slot.chunk);
  const bool input = place.slot.buffer == schedule::Buffer::input;
  if (!parcels_.empty()) {
    return input ? sent_before(place.rank, index % rank_count_)
                 : received_before(index / rank_count_, place.rank);
  }
  if (exchanges()) {
    if (input) return begin_[index % rank_count_];
    const auto& begin = received_begin_.empty() ? begin_ : received_begin_;
    return begin[index / rank_count_];
  }
  // A short buffer begins with the rank's own chunk.
  const bool is_short =
      input ? collective_ == Collective::all_gather || collective_ == Collective::gather
            : collective_ == Collective::reduce_scatter || collective_ == Collective::scatter;
  return begin_[index] - (is_short ? begin_[static_cast<std::size_t>(place.rank)] : 0);
}

// How much rank `from` sends to the ranks before `to`.
std::size_t ChunkLayout::sent_before(Rank from, std::size_t to) const {
  return total(std::span(parcels_).subspan(static_cast<std::size_t>(from) * rank_count_, to));
}

std::size_t ChunkLayout::received_before(std::size_t from, Rank by) const {
  std::size_t sum = 0;
  for (std::size_t rank = 0; rank < from; ++rank) {
    sum += parcels_[rank * rank_count_ + static_cast<std::size_t>(by)];
  }
  return sum;
}

std::size_t ChunkLayout::longest() const {
  if (!parcels_.empty()) return std::ranges::max(parcels_);
  std::size_t longest = 0;
  for (const auto* begin : {&begin_, &received_begin_}) {
    for (std::size_t c = 0; c + 1 < begin->size(); ++c) {
      longest = std::max(longest, (*begin)[c + 1] - (*begin)[c]);
    }
  }
  return longest;
}

std::size_t ChunkLayout::input_elements(Rank rank) const {
  if (!parcels_.empty()) return sent_before(rank, rank_count_);
  switch (collective_) {
    case Collective::all_gather:
    case Collective::gather:
      return elements(rank.value());
    case Collective::broadcast:
    case Collective::scatter:
      return rank == root_ ? begin_.back() : 0;
    default:
      return begin_.back();
  }
}

std::size_t ChunkLayout::output_elements(Rank rank) const {
  if (!parcels_.empty()) return received_before(rank_count_, rank);
  switch (collective_) {
    case Collective::reduce_scatter:
    case Collective::scatter:
      return elements(rank.value());
    case Collective::reduce:
    case Collective::gather:
      return rank == root_ ? begin_.back() : 0;
    default:
      return received_begin_.empty() ? begin_.back() : received_begin_.back();
  }
}

}  // namespace stretto::execution
