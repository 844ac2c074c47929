// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/codec/rows.h"

#include <cstring>

#include <fmt/format.h>

#include "stretto/base/round_up.h"
#include "stretto/codec/arithmetic.h"
#include "stretto/codec/header.h"
#include "stretto/codec/index_set.h"

namespace stretto::codec {
namespace {

constexpr std::uint8_t kKind = 8;  // Codec::Kind::rows.

bool is_bf16(const RowsFormat& format) { return format.values == ValueFormat::bf16; }

std::string name_of(const RowsFormat& format) {
  return fmt::format("rows of {} {}{}", format.row_elements, name(format.dtype),
                     is_bf16(format) ? " as bf16" : "");
}

std::size_t value_bytes(const RowsFormat& format, std::size_t rows) {
  const std::size_t size = is_bf16(format) ? sizeof(BFloat16) : size_bytes(format.dtype);
  return rows * format.row_elements * size;
}

std::size_t payload_bytes(const RowsFormat& format, std::size_t rows) {
  return index_set_bytes(format.universe, rows) + round_up(value_bytes(format, rows), 8);
}

}  // namespace

std::size_t rows_message_bytes(const RowsFormat& format, std::size_t rows) {
  return sizeof(Header) + payload_bytes(format, rows);
}

void write_rows(const RowsFormat& format, std::span<const std::uint32_t> rows, const void* values,
                std::vector<std::byte>& out) {
  const std::size_t begin = out.size();
  out.resize(begin + rows_message_bytes(format, rows.size()));
  const std::span<std::byte> message = std::span(out).subspan(begin);
  const std::size_t indices = index_set_bytes(format.universe, rows.size());
  write_index_set(rows, format.universe, message.subspan(sizeof(Header), indices));
  const std::span<std::byte> to = message.subspan(sizeof(Header) + indices);
  const std::size_t elements = rows.size() * format.row_elements;
  if (elements > 0 && is_bf16(format)) {
    convert({to.data(), elements, DType::bf16},
            {static_cast<const std::byte*>(values), elements, DType::f32});
  } else if (elements > 0) {
    std::memcpy(to.data(), values, value_bytes(format, rows.size()));
  }
  Header header;
  header.kind = kKind;
  header.settings = settings_of(name_of(format));
  header.count = format.universe;
  header.values = rows.size();
  seal(header, message);
}

Result<std::size_t> read_rows(std::span<const std::byte> bytes, const RowsFormat& format,
                              std::span<std::uint32_t> rows, void* values) {
  STRETTO_ASSIGN_OR_RETURN(
      const Header header,
      read_header(bytes, {.kind = kKind, .name = name_of(format), .count = format.universe}));
  if (header.values != rows.size() || header.flags != 0) {
    return status_of(StatusCode::protocol, "{} rows, where {} were announced", header.values,
                     rows.size());
  }
  const std::size_t length = payload_bytes(format, rows.size());
  STRETTO_RETURN_IF_ERROR(check_payload(bytes, header, length));
  const auto payload = bytes.subspan(sizeof(Header), length);
  const std::size_t indices = index_set_bytes(format.universe, rows.size());
  if (!read_index_set(payload.first(indices), format.universe, rows)) {
    return Status(StatusCode::protocol, "rows that do not ascend below their number");
  }
  const auto from = payload.subspan(indices);
  const std::size_t elements = rows.size() * format.row_elements;
  if (elements > 0 && is_bf16(format)) {
    convert({static_cast<std::byte*>(values), elements, DType::f32},
            {from.data(), elements, DType::bf16});
  } else if (elements > 0) {
    std::memcpy(values, from.data(), value_bytes(format, rows.size()));
  }
  return sizeof(Header) + length;
}

}  // namespace stretto::codec
