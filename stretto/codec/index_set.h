// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stretto::codec {

// Ascending indices below `universe` as bits: Elias-Fano, or a bitmap where that is shorter. How
// long they are depends on the two numbers alone, so that ranks which send equally many need not
// tell each other. At most 2 bits and log2(universe / count) for each. `universe` is below 2^32,
// `count` at most `universe`.
std::size_t index_set_bytes(std::size_t universe, std::size_t count);

// `to` has index_set_bytes() bytes, which are zero.
void write_index_set(std::span<const std::uint32_t> indices, std::size_t universe,
                     std::span<std::byte> to);
// `from` has index_set_bytes(universe, indices.size()) bytes. False if they are not what
// write_index_set() makes; then `indices` hold anything.
bool read_index_set(std::span<const std::byte> from, std::size_t universe,
                    std::span<std::uint32_t> indices);

// How the bits of a set lie.
struct IndexLayout {
  bool is_bitmap = false;
  unsigned low_bits = 0;
  std::size_t low_words = 0;
  std::size_t high_words = 0;
};

// The same bit by bit, for those who use the first indices while they are in the cache.
class IndexReader {
 public:
  // `words` of 64 bits of the upper half are read at a time.
  IndexReader(std::span<const std::byte> from, std::size_t universe,
              std::span<std::uint32_t> indices, std::size_t words);
  // Reads some. False at the end, and where the bytes are not what write_index_set() makes.
  bool read_some();
  // So many are there, ascend, and are below `universe`, whatever the rest may be.
  std::size_t ready() const { return ready_; }
  // Once read_some() has returned false: whether all were there, and no more.
  bool is_complete() const { return !is_wrong_ && found_ == indices_.size(); }

 private:
  const IndexLayout layout_;
  const std::span<const std::byte> lows_;
  std::span<const std::byte> highs_;  // That are left.
  const std::size_t universe_;
  const std::span<std::uint32_t> indices_;
  const std::size_t bytes_at_a_time_;
  std::size_t found_ = 0;
  std::size_t ready_ = 0;
  std::uint32_t bit_ = 0;  // That `highs_` begin with.
  bool is_wrong_ = false;
};

}  // namespace stretto::codec
