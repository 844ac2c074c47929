// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/open_library.h"

#include <dlfcn.h>

namespace stretto {

Result<OpenedLibrary> open_library(std::span<const std::string> files, int scope) {
  std::string said;
  for (const std::string& file : files) {
    void* const handle = ::dlopen(file.c_str(), RTLD_NOW | scope);
    if (handle != nullptr) return OpenedLibrary{handle, file};
    said += (said.empty() ? "" : "; ") + std::string(::dlerror());
  }
  return Status(StatusCode::invalid_argument, said);
}

}  // namespace stretto
