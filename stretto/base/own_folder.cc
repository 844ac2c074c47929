// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/own_folder.h"

#include <dlfcn.h>

#include <filesystem>
#include <string_view>

namespace stretto {

std::string own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0) return "";
  const std::string_view path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  if (slash != std::string_view::npos) return std::string(path.substr(0, slash + 1));
  // It is in a program, which was found by PATH.
  std::error_code unknown;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  return unknown ? "" : program.parent_path().string() + "/";
}

}  // namespace stretto
