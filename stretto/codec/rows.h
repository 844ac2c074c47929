// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/base/status.h"
#include "stretto/codec/codec.h"

namespace stretto::codec {

// Of messages that hold some rows of a matrix, the others being zero:
// docs/internals/wire_format.md. Both sides know it.
struct RowsFormat {
  std::size_t universe = 0;  // Rows are below it; below 2^32.
  std::size_t row_elements = 0;
  DType dtype = DType::f32;
  ValueFormat values = ValueFormat::f32;  // As they are, or bf16: of f32 only.
};

std::size_t rows_message_bytes(const RowsFormat& format, std::size_t rows);

// Appends the message of these rows, which ascend. `values` has row_elements elements for each.
void write_rows(const RowsFormat& format, std::span<const std::uint32_t> rows, const void* values,
                std::vector<std::byte>& out);

// What the message at the beginning of `bytes` holds, which must be as many rows as there is room
// for; returns its length. `bytes` may be anything. Fails as Codec::decode_add() does; then `rows`
// and `values` hold anything.
Result<std::size_t> read_rows(std::span<const std::byte> bytes, const RowsFormat& format,
                              std::span<std::uint32_t> rows, void* values);

}  // namespace stretto::codec
