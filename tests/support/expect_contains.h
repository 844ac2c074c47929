// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string_view>

#include "stretto/base/status.h"

namespace stretto {

// Fails the test, at the caller's line and with both texts, unless `text` contains `part`.
inline void expect_contains(std::string_view text, std::string_view part,
                            const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (text.find(part) != std::string_view::npos) return;
  ADD_FAILURE_AT(file, line) << "\"" << part << "\" is not in: " << text;
}

inline void expect_lacks(std::string_view text, std::string_view part,
                         const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (text.find(part) == std::string_view::npos) return;
  ADD_FAILURE_AT(file, line) << "\"" << part << "\" is in: " << text;
}

// Fails the test unless the status has this code, and its message contains `part`.
inline void expect_failure(const Status& status, StatusCode code, std::string_view part,
                           const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (status.code() != code) {
    ADD_FAILURE_AT(file, line) << name(status.code()) << ", not " << name(code) << ": "
                               << status.message();
  }
  expect_contains(status.message(), part, file, line);
}

// The same with all of `parts`.
inline void expect_failure(const Status& status, StatusCode code,
                           std::initializer_list<std::string_view> parts,
                           const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  for (const std::string_view part : parts) expect_failure(status, code, part, file, line);
}

}  // namespace stretto
