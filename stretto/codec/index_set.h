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

}  // namespace stretto::codec
