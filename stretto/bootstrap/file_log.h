// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "stretto/base/status.h"

namespace stretto::bootstrap {

// The form of a FileStore's file: a head, then records, each of which gives a key a value or
// deletes it. docs/internals/wire_format.md draws them.

// What a file of this kind begins with.
std::string_view file_log_head();

// A value for `key`; without one: the key is deleted.
std::string encode_file_record(std::string_view key, std::optional<std::string_view> value);

// The first record of `log`, as views of it, and how many bytes it takes there.
struct FileRecord {
  std::string_view key = {};
  std::optional<std::string_view> value = std::nullopt;
  std::size_t bytes = 0;
};
// Empty if the record ends after the log: its writer is still writing, or was killed. Fails with
// protocol if the bytes cannot be a record, whatever follows.
Result<std::optional<FileRecord>> decode_file_record(std::string_view log);

}  // namespace stretto::bootstrap
