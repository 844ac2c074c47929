// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>
#include <string>

#include "stretto/base/status.h"

namespace stretto {

struct OpenedLibrary {
  void* handle = nullptr;  // Of dlopen(), never closed.
  std::string file;
};

// The first of these shared libraries that can be loaded. `scope` is RTLD_LOCAL, or RTLD_GLOBAL
// where parts that the library loads itself look for its symbols. Fails with invalid_argument, and
// says why each cannot be loaded.
Result<OpenedLibrary> open_library(std::span<const std::string> files, int scope);

}  // namespace stretto
