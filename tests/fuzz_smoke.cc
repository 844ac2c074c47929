// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The main function of a fuzz target where there is no libFuzzer: twenty thousand inputs from a
// fixed seed, or the files named on the command line. Keeps the target compiling and finds what is
// easily found; to fuzz in earnest, build with the preset `clang`.

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <vector>

#include "stretto/base/random.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// Bytes that are often small, because lengths, kinds and counts are what a decoder looks at.
std::vector<std::uint8_t> random_input(stretto::Random& random) {
  std::vector<std::uint8_t> input(random.below(2) == 0 ? random.below(16) : random.below(512));
  for (std::uint8_t& byte : input) {
    byte = static_cast<std::uint8_t>(random.below(4) == 0 ? random.below(256) : random.below(8));
  }
  return input;
}

void run(const std::vector<std::uint8_t>& input) {
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 1) {
    stretto::Random random(1);
    for (int i = 0; i < 20000; ++i) run(random_input(random));
  }
  for (int i = 1; i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    run({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
  }
}
