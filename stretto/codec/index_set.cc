// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/index_set.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "stretto/kernel/indices.h"

namespace stretto::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are little endian");

constexpr std::size_t kWordBits = 64;
constexpr std::size_t kWordBytes = 8;
constexpr std::size_t words(std::size_t bits) { return (bits + kWordBits - 1) / kWordBits; }

// Words may have any alignment.
std::uint64_t load(std::span<const std::byte> from, std::size_t word) {
  std::uint64_t value = 0;
  std::memcpy(&value, from.data() + word * kWordBytes, kWordBytes);
  return value;
}
void store(std::span<std::byte> to, std::size_t word, std::uint64_t bits) {
  std::memcpy(to.data() + word * kWordBytes, &bits, kWordBytes);
}

// Elias-Fano: the low bits of all indices one after the other. Then a bit string in which bit h + j
// is set for index j with the high part h. In a bitmap there are no low bits, and the bit of an
// index is the index itself.
IndexLayout layout_of(std::size_t universe, std::size_t count) {
  if (count == 0) return {};
  IndexLayout layout;
  layout.low_bits = static_cast<unsigned>(std::bit_width(universe / count)) - 1;
  layout.low_words = words(count * layout.low_bits);
  layout.high_words = words(count + ((universe - 1) >> layout.low_bits) + 1);
  const std::size_t bitmap_words = words(universe);
  if (layout.low_words + layout.high_words < bitmap_words) return layout;
  return {.is_bitmap = true, .low_bits = 0, .low_words = 0, .high_words = bitmap_words};
}

}  // namespace

std::size_t index_set_bytes(std::size_t universe, std::size_t count) {
  const IndexLayout layout = layout_of(universe, count);
  return (layout.low_words + layout.high_words) * kWordBytes;
}

void write_index_set(std::span<const std::uint32_t> indices, std::size_t universe,
                     std::span<std::byte> to) {
  const IndexLayout layout = layout_of(universe, indices.size());
  const std::span<std::byte> high = to.subspan(layout.low_words * kWordBytes);
  const std::uint64_t mask = (std::uint64_t{1} << layout.low_bits) - 1;
  std::uint64_t lows = 0;  // The word that is not full yet.
  std::size_t low_word = 0;
  unsigned used = 0;  // Used bits of `lows`.
  for (std::size_t j = 0; j < indices.size(); ++j) {
    const std::uint64_t index = indices[j];
    const std::uint64_t low = index & mask;
    lows |= low << used;
    used += layout.low_bits;
    if (used >= kWordBits) {
      store(to, low_word++, lows);
      used -= unsigned{kWordBits};
      lows = used > 0 ? low >> (layout.low_bits - used) : 0;
    }
    const std::size_t place = (index >> layout.low_bits) + (layout.is_bitmap ? 0 : j);
    // Writes bytes, not words: no branch depends on when a word is full, and few bits wait for a
    // store before them.
    high[place / 8] |= std::byte{1} << (place % 8);
  }
  if (used > 0) store(to, low_word, lows);
}

IndexReader::IndexReader(std::span<const std::byte> from, std::size_t universe,
                         std::span<std::uint32_t> indices, std::size_t words)
    : layout_(layout_of(universe, indices.size())),
      lows_(from),
      highs_(from.subspan(layout_.low_words * kWordBytes)),
      universe_(universe),
      indices_(indices),
      bytes_at_a_time_(words * kWordBytes) {
  const std::size_t low_end = indices.size() * layout_.low_bits % kWordBits;
  is_wrong_ = low_end != 0 && load(from, layout_.low_words - 1) >> low_end != 0;
}

bool IndexReader::read_some() {
  if (highs_.empty() || is_wrong_) return false;
  is_wrong_ = true;  // Until all checks below have passed.
  const auto words = highs_.first(std::min(bytes_at_a_time_, highs_.size()));
  const std::size_t before = found_;
  found_ += kernel::find_ones(words, bit_, indices_.subspan(found_));
  if (found_ > indices_.size()) return false;
  // Places ascend. So if the last one is valid, all are.
  const std::size_t others = layout_.is_bitmap || found_ == 0 ? 0 : found_ - 1;
  const std::size_t last_place = (universe_ - 1) >> layout_.low_bits;
  if (found_ > before && indices_[found_ - 1] - others > last_place) return false;
  std::size_t ready = found_;
  if (!layout_.is_bitmap) {
    constexpr std::size_t kAtATime = 8;  // See join_low_bits().
    if (found_ < indices_.size()) ready -= found_ % kAtATime;
    kernel::join_low_bits(lows_, layout_.low_bits, ready_,
                          indices_.subspan(ready_, ready - ready_));
    const std::size_t from = ready_ > 0 ? ready_ - 1 : 0;
    if (!kernel::are_ascending(indices_.subspan(from, ready - from))) return false;
  }
  if (ready > ready_ && indices_[ready - 1] >= universe_) return false;
  ready_ = ready;
  bit_ += static_cast<std::uint32_t>(words.size() * 8);
  highs_ = highs_.subspan(words.size());
  is_wrong_ = false;
  return true;
}

bool read_index_set(std::span<const std::byte> from, std::size_t universe,
                    std::span<std::uint32_t> indices) {
  // Reads some words at a time, so that their indices stay in the cache.
  IndexReader reader(from, universe, indices, 32);
  while (reader.read_some()) {
  }
  return reader.is_complete();
}

}  // namespace stretto::codec
