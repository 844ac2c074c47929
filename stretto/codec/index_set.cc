// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/index_set.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "stretto/kernel/indices.h"

namespace stretto::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are little endian");

constexpr std::size_t kWordBits = 64;
constexpr std::size_t kWordBytes = 8;
constexpr std::size_t words(std::size_t bits) { return (bits + kWordBits - 1) / kWordBits; }

// Words need not be aligned.
std::uint64_t load(std::span<const std::byte> from, std::size_t word) {
  std::uint64_t value = 0;
  std::memcpy(&value, from.data() + word * kWordBytes, kWordBytes);
  return value;
}
void store(std::span<std::byte> to, std::size_t word, std::uint64_t bits) {
  std::memcpy(to.data() + word * kWordBytes, &bits, kWordBytes);
}

// Elias-Fano: the low bits of each index one behind the other, then, for index j with the high part
// h, bit h + j. A bitmap is the same without low bits where an index is its own place.
struct Layout {
  bool is_bitmap = false;
  unsigned low_bits = 0;
  std::size_t low_words = 0;
  std::size_t high_words = 0;
};

Layout layout_of(std::size_t universe, std::size_t count) {
  if (count == 0) return {};
  Layout layout;
  layout.low_bits = static_cast<unsigned>(std::bit_width(universe / count)) - 1;
  layout.low_words = words(count * layout.low_bits);
  layout.high_words = words(count + ((universe - 1) >> layout.low_bits) + 1);
  const std::size_t bitmap_words = words(universe);
  if (layout.low_words + layout.high_words < bitmap_words) return layout;
  return {.is_bitmap = true, .low_bits = 0, .low_words = 0, .high_words = bitmap_words};
}

}  // namespace

std::size_t index_set_bytes(std::size_t universe, std::size_t count) {
  const Layout layout = layout_of(universe, count);
  return (layout.low_words + layout.high_words) * kWordBytes;
}

void write_index_set(std::span<const std::uint32_t> indices, std::size_t universe,
                     std::span<std::byte> to) {
  const Layout layout = layout_of(universe, indices.size());
  const std::span<std::byte> high = to.subspan(layout.low_words * kWordBytes);
  const std::uint64_t mask = (std::uint64_t{1} << layout.low_bits) - 1;
  std::uint64_t lows = 0, highs = 0;  // The words that are not full yet.
  std::size_t low_word = 0, high_word = 0;
  unsigned used = 0;  // Bits of `lows`.
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
    if (place / kWordBits != high_word) {
      store(high, high_word, std::exchange(highs, 0));
      high_word = place / kWordBits;
    }
    highs |= std::uint64_t{1} << (place % kWordBits);
  }
  if (used > 0) store(to, low_word, lows);
  if (!indices.empty()) store(high, high_word, highs);
}

bool read_index_set(std::span<const std::byte> from, std::size_t universe,
                    std::span<std::uint32_t> indices) {
  const std::size_t count = indices.size();
  const Layout layout = layout_of(universe, count);
  const std::span<const std::byte> high = from.subspan(layout.low_words * kWordBytes);
  const std::size_t low_end = count * layout.low_bits % kWordBits;
  if (low_end != 0 && load(from, layout.low_words - 1) >> low_end != 0) return false;
  // Some words at a time, whose indices stay in the cache.
  constexpr std::size_t kBytes = 32 * kWordBytes;
  constexpr std::size_t kAtATime = 8;  // See join_low_bits().
  std::size_t found = 0, joined = 0;
  for (std::size_t at = 0; at < high.size(); at += kBytes) {
    const auto words = high.subspan(at, std::min(kBytes, high.size() - at));
    found += kernel::find_ones(words, static_cast<std::uint32_t>(at * 8), indices.subspan(found));
    if (found > count) return false;
    // Places ascend, so that none is beyond the universe if the last is not.
    const std::size_t others = layout.is_bitmap ? 0 : found - 1;
    if (found > joined && indices[found - 1] - others > (universe - 1) >> layout.low_bits) {
      return false;
    }
    if (layout.is_bitmap) continue;
    const std::size_t ready = found == count ? count : found - found % kAtATime;
    kernel::join_low_bits(from, layout.low_bits, joined, indices.subspan(joined, ready - joined));
    const std::size_t before = joined > 0 ? joined - 1 : 0;
    if (!kernel::are_ascending(indices.subspan(before, ready - before))) return false;
    joined = ready;
  }
  return found == count && (count == 0 || indices[count - 1] < universe);
}

}  // namespace stretto::codec
