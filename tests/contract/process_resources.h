// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace stretto::transport {

// Count what this process has: descriptors, and mappings of memory that ranks share.
inline int open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

inline int shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:stretto") != std::string::npos) ++count;
  }
  return count;
}

}  // namespace stretto::transport
