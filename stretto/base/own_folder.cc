// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/own_folder.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <string_view>

namespace stretto {

std::string own_folder() {
  Dl_info info{};
  link_map* object = nullptr;
  if (::dladdr1(reinterpret_cast<const void*>(&own_folder), &info,
                reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) == 0) {
    return "";
  }
  const std::string_view path = object->l_name;
  if (!path.empty()) return std::string(path.substr(0, path.rfind('/') + 1));
  // The code is in the program itself. The name in `info` is the one by which the program was
  // called. It does not lead to the file if the program was found by PATH, or if the current folder
  // has changed.
  std::error_code unknown;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  return unknown ? "" : program.parent_path().string() + "/";
}

}  // namespace stretto
