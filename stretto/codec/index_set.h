// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::codec {

// The bytes of a set of `count` ascending indices below `universe`, as bits: an Elias-Fano code, or
// a bitmap where that is shorter. The size depends on the two numbers alone, so ranks that send
// equally many indices need not tell each other. It is at most 2 + log2(universe / count) bits per
// index, rounded up to words. `universe` is below 2^32, `count` at most `universe`.
std::size_t index_set_bytes(std::size_t universe, std::size_t count);

// Writes a set to `to`, which has index_set_bytes() bytes and must be zero.
void write_index_set(std::span<const std::uint32_t> indices, std::size_t universe,
                     std::span<std::byte> to);
// Reads a set from `from`, which has index_set_bytes(universe, indices.size()) bytes. Returns false
// if write_index_set() does not make such bytes; then the contents of `indices` are undefined.
bool read_index_set(std::span<const std::byte> from, std::size_t universe,
                    std::span<std::uint32_t> indices);

// The layout of the bits of a set.
struct IndexLayout {
  bool is_bitmap = false;
  unsigned low_bits = 0;
  std::size_t low_words = 0;
  std::size_t high_words = 0;
};

// Reads a set in parts, for callers that use the first indices while they are still in the cache.
class IndexReader {
 public:
  // Each call of read_some() reads `words` 64-bit words of the upper half.
  IndexReader(std::span<const std::byte> from, std::size_t universe,
              std::span<std::uint32_t> indices, std::size_t words);
  // Reads the next indices. Returns false at the end, and if write_index_set() does not make such
  // bytes.
  bool read_some();
  // The number of indices read so far that ascend and are below `universe`, whatever follows them.
  std::size_t ready() const { return ready_; }
  // After read_some() has returned false: whether the set was valid and had exactly as many indices
  // as expected.
  bool is_complete() const { return !is_wrong_ && found_ == indices_.size(); }

 private:
  const IndexLayout layout_;
  const std::span<const std::byte> lows_;
  std::span<const std::byte> highs_;  // The rest of the upper half.
  const std::size_t universe_;
  const std::span<std::uint32_t> indices_;
  const std::size_t bytes_at_a_time_;
  std::size_t found_ = 0;
  std::size_t ready_ = 0;
  std::uint32_t bit_ = 0;  // Number of the first bit of `highs_`.
  bool is_wrong_ = false;
};

}  // namespace stretto::codec
