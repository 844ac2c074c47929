// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/file_log.h"

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

// Covers all of a record except the checksum itself: what stands before it, and key and value.
std::uint64_t checksum(std::string_view before, std::string_view texts) {
  return fnv1a(texts, fnv1a(before));
}

}  // namespace

std::string_view file_log_head() { return kHead; }

std::string encode_file_record(std::string_view key, std::optional<std::string_view> value) {
  std::string texts(key);
  texts.append(value.value_or(""));
  std::string record;
  append_little_endian(record, static_cast<std::uint8_t>(value ? Kind::value : Kind::deletion));
  append_little_endian(record, std::uint8_t{0});
  append_little_endian(record, static_cast<std::uint16_t>(key.size()));
  append_little_endian(record, static_cast<std::uint32_t>(texts.size() - key.size()));
  append_little_endian(record, checksum(record, texts));
  return record + texts;
}

Result<std::optional<FileRecord>> decode_file_record(std::string_view log) {
  if (log.size() < kRecordHeadBytes) return std::optional<FileRecord>();
  const auto kind = load_little_endian<std::uint8_t>(log);
  const std::size_t key_bytes = load_little_endian<std::uint16_t>(log, 2);
  const std::size_t value_bytes = load_little_endian<std::uint32_t>(log, 4);
  const bool deletes = kind == static_cast<std::uint8_t>(Kind::deletion);
  const bool sensible = (deletes || kind == static_cast<std::uint8_t>(Kind::value)) &&
                        log[1] == '\0' && key_bytes >= 1 && key_bytes <= kMaxKeyBytes &&
                        value_bytes <= (deletes ? 0 : kMaxValueBytes);
  const std::size_t bytes = kRecordHeadBytes + key_bytes + value_bytes;
  if (sensible && log.size() < bytes) return std::optional<FileRecord>();
  const std::string_view record = log.substr(0, bytes);
  if (!sensible || load_little_endian<std::uint64_t>(record, kChecksumAt) !=
                       checksum(record.substr(0, kChecksumAt), record.substr(kRecordHeadBytes))) {
    return status_of(StatusCode::protocol, "a record of the file is damaged");
  }
  FileRecord decoded{.key = record.substr(kRecordHeadBytes, key_bytes), .bytes = bytes};
  if (!deletes) decoded.value = record.substr(kRecordHeadBytes + key_bytes);
  return std::optional(decoded);
}

}  // namespace stretto::bootstrap
