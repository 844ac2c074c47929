// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stretto::transport::packets {

// Whether UCX is free to choose the setting `name`. `settings` is what UCX prints of all settings,
// one a line. From version 1.17 on, some have a value for each of several cases
// ("intra:auto,inter:auto").
inline bool is_auto(std::string_view settings, const std::string& name) {
  const std::string begin = "\n" + name + "=";
  const std::size_t found = settings.find(begin);
  if (found == std::string_view::npos) return false;
  std::string_view value = settings.substr(found + begin.size());
  value = value.substr(0, value.find('\n'));
  while (true) {
    const std::size_t comma = value.find(',');
    std::string_view of_case = value.substr(0, comma);
    of_case.remove_prefix(of_case.find(':') + 1);  // npos + 1 is 0: all of it stays.
    if (of_case != "auto") return false;
    if (comma == std::string_view::npos) return true;
    value.remove_prefix(comma + 1);
  }
}

}  // namespace stretto::transport::packets
