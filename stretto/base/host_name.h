// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace stretto {

// The name of this machine or container; "?" if it has none.
inline std::string host_name() {
  std::array<char, 65> name{};
  if (::gethostname(name.data(), name.size()) != 0) name[0] = '?';
  return name.data();
}

}  // namespace stretto
