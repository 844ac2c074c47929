// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

namespace stretto::bench {

// Where it was measured. What cannot be found out is empty.
struct Machine {
  std::string processor = {};  // "AMD EPYC (family 26)"
  int cores = 0;               // That this job's ranks may use on this host.
  std::string caches = {};     // "L1d 48 KiB, L2 1 MiB, L3 32 MiB"
  std::string kernel = {};     // "Linux 6.1.0"
};

Machine find_machine(int usable_cores);

}  // namespace stretto::bench
