// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/file_log.h"

#include <array>
#include <span>

#include "stretto/base/fnv1a.h"
#include "stretto/base/little_endian.h"
#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {
namespace {

// The number is the version of the format.
constexpr std::string_view kHead = "stretto store 2\n";

enum class Kind : std::uint8_t { value = 1, deletion = 2 };

//  0          1      2            4              8          16
//  | kind u8  | zero | key length | value length | checksum | key | value |
constexpr std::size_t kChecksumAt = 8;
constexpr std::size_t kRecordHeadBytes = 16;

// Covers all of a record except the checksum itself.
std::uint64_t checksum(std::string_view record) {
  return fnv1a(record.substr(kRecordHeadBytes), fnv1a(record.substr(0, kChecksumAt)));
}

template <class T>
void put(std::string& record, std::size_t at, T value) {
  std::array<std::byte, sizeof(T)> bytes{};
  store_little_endian(bytes.data(), value);
  record.replace(at, sizeof(T), reinterpret_cast<const char*>(bytes.data()), sizeof(T));
}

template <class T>
T take(std::string_view record, std::size_t at) {
  return load_little_endian<T>(std::as_bytes(std::span(record.substr(at, sizeof(T)))).data());
}

}  // namespace

std::string_view file_log_head() { return kHead; }

std::string encode_file_record(std::string_view key, std::optional<std::string_view> value) {
  std::string record(kRecordHeadBytes, '\0');
  put(record, 0, static_cast<std::uint8_t>(value ? Kind::value : Kind::deletion));
  put(record, 2, static_cast<std::uint16_t>(key.size()));
  put(record, 4, static_cast<std::uint32_t>(value.value_or("").size()));
  record.append(key).append(value.value_or(""));
  put(record, kChecksumAt, checksum(record));
  return record;
}

Result<std::optional<FileRecord>> decode_file_record(std::string_view log) {
  if (log.size() < kRecordHeadBytes) return std::optional<FileRecord>();
  const auto kind = take<std::uint8_t>(log, 0);
  const std::size_t key_bytes = take<std::uint16_t>(log, 2);
  const std::size_t value_bytes = take<std::uint32_t>(log, 4);
  const bool deletes = kind == static_cast<std::uint8_t>(Kind::deletion);
  const bool sensible = (deletes || kind == static_cast<std::uint8_t>(Kind::value)) &&
                        log[1] == '\0' && key_bytes >= 1 && key_bytes <= kMaxKeyBytes &&
                        value_bytes <= (deletes ? 0 : kMaxValueBytes);
  const std::size_t bytes = kRecordHeadBytes + key_bytes + value_bytes;
  if (sensible && log.size() < bytes) return std::optional<FileRecord>();
  const std::string_view record = log.substr(0, bytes);
  if (!sensible || take<std::uint64_t>(record, kChecksumAt) != checksum(record)) {
    return status_of(StatusCode::protocol, "a record of the file is damaged");
  }
  FileRecord decoded{.key = record.substr(kRecordHeadBytes, key_bytes), .bytes = bytes};
  if (!deletes) decoded.value = record.substr(kRecordHeadBytes + key_bytes);
  return std::optional(decoded);
}

}  // namespace stretto::bootstrap
