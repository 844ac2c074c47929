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

// The format of messages that hold some rows of a matrix; the other rows are zero. See
// docs/internals/wire_format.md. Both sides know the format.
struct RowsFormat {
  std::size_t universe = 0;  // Number of rows of the matrix; below 2^32.
  std::size_t row_elements = 0;
  DType dtype = DType::f32;
  ValueFormat values = ValueFormat::f32;  // f32: in their dtype. bf16: only for f32.
};

std::size_t rows_message_bytes(const RowsFormat& format, std::size_t rows);

// Appends the message of these rows, which must ascend. `values` has row_elements elements per row.
void write_rows(const RowsFormat& format, std::span<const std::uint32_t> rows, const void* values,
                std::vector<std::byte>& out);

// Reads the message at the beginning of `bytes`, which must hold rows.size() rows. Returns its
// length. `bytes` may be any bytes. Fails as Codec::decode_add() does; then the contents of `rows`
// and `values` are undefined.
Result<std::size_t> read_rows(std::span<const std::byte> bytes, const RowsFormat& format,
                              std::span<std::uint32_t> rows, void* values);

}  // namespace stretto::codec
