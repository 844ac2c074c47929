// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Prints "ALGORITHM BUFFERS hash" for each way to do the same all-reduces, on every rank.

#include <cinttypes>
#include <cstdio>

#include "stretto/stretto.h"
#include "tests/end_to_end/bits.h"

int main() {
  auto comm = stretto::join();
  for (const std::string& algorithm : stretto::testing::canonical_algorithms()) {
    for (const bool registered : {false, true}) {
      const std::uint64_t hash =
          stretto::testing::hash_of_all_reduces(*comm, algorithm, registered);
      std::printf("bits %016" PRIx64 " %s %s\n", hash,
                  algorithm.empty() ? "chosen" : algorithm.c_str(),
                  registered ? "registered" : "private");
    }
  }
}
