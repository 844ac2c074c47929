// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "stretto/base/status.h"

namespace stretto::bootstrap {

// The format of a FileStore's file: a head, then records. Each record sets or deletes a key.
// docs/internals/wire_format.md draws them.

// The first bytes of every such file.
std::string_view file_log_head();

// A record that sets `key` to `value`, or deletes it if there is no value.
std::string encode_file_record(std::string_view key, std::optional<std::string_view> value);

// The first record of a log, as views of the log, and the record's size.
struct FileRecord {
  std::string_view key = {};
  std::optional<std::string_view> value = std::nullopt;
  std::size_t bytes = 0;
};
// Decodes the first record of `log`. Empty if `log` ends within the record: its writer is still
// writing, or was killed. Fails with protocol if the bytes cannot begin a record.
Result<std::optional<FileRecord>> decode_file_record(std::string_view log);

}  // namespace stretto::bootstrap
