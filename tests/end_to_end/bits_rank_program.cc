// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// bits_rank_program [chosen]: prints "bits HASH ALGORITHM BUFFERS" for each way to do the same
// all-reduces, on every rank; with the argument, for the algorithm that is chosen only.

#include <cinttypes>
#include <cstdio>

#include "stretto/stretto.h"
#include "tests/end_to_end/bits.h"

int main(int argument_count, char**) {
  auto comm = stretto::join();
  auto algorithms = stretto::testing::canonical_algorithms();
  if (argument_count > 1) algorithms = {""};
  for (const std::string& algorithm : algorithms) {
    for (const bool registered : {false, true}) {
      const std::uint64_t hash =
          stretto::testing::hash_of_all_reduces(*comm, algorithm, registered);
      std::printf("bits %016" PRIx64 " %s %s\n", hash,
                  algorithm.empty() ? "chosen" : algorithm.c_str(),
                  registered ? "registered" : "private");
    }
  }
}
