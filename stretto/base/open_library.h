// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>
#include <string>

#include "stretto/base/status.h"

namespace stretto {

struct OpenedLibrary {
  void* handle = nullptr;  // From dlopen(), never closed.
  std::string file;
};

// Opens the first of these shared libraries that can be loaded. `scope` is RTLD_LOCAL, or
// RTLD_GLOBAL if parts that the library itself loads need its symbols. Fails with invalid_argument;
// the message says why each file cannot be loaded.
Result<OpenedLibrary> open_library(std::span<const std::string> files, int scope);

}  // namespace stretto
